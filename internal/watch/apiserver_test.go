package watch

import (
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/kube-ipvs/kube-ipvs/internal/watch/watchtest"
)

// quick is the timing for tests: milliseconds instead of seconds, and a limited watch rate.
func quick() timing {
	t := defaultTiming()
	t.dial, t.pingIdle, t.pingTimeout, t.silence, t.watchRate = time.Second, 200*time.Millisecond, 200*time.Millisecond, time.Minute, 100
	t.backoff = newBackoff()
	return t
}

func run(t *testing.T, api *API) {
	t.Helper()
	t.Cleanup(func() {
		for _, f := range api.feeds {
			f.client.(*rest.RESTClient).Client.CloseIdleConnections()
		}
	})
	watchtest.Run(t, api)
}
