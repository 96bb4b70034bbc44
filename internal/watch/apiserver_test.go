package watch

import (
	"context"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// quick is the timing for tests: milliseconds instead of seconds, and a limited watch rate.
func quick() timing {
	t := defaultTiming()
	t.dial, t.pingIdle, t.pingTimeout, t.silence, t.watchRate = time.Second, 200*time.Millisecond, 200*time.Millisecond, time.Minute, 100
	t.backoff = newBackoff()
	return t
}

// run starts a source and stops it at the end of the test. So every test checks that the source stops.
func run(t *testing.T, source interface{ Run(context.Context) error }) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- source.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(5 * time.Second):
			t.Error("Run continues after its context ended")
		}
		if api, ok := source.(*API); ok {
			for _, f := range api.feeds {
				f.client.(*rest.RESTClient).Client.CloseIdleConnections()
			}
		}
	})
}
