//go:build linux

package daemon

import (
	"errors"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

func TestNotSyncedNamesServerAndReasons(t *testing.T) {
	s := &Source{api: &rest.Config{Host: "https://10.96.0.1:443"}, lastErrors: func() map[model.Kind]error {
		return map[model.Kind]error{model.KindService: errors.New("connection refused")}
	}}
	for _, want := range []string{"https://10.96.0.1:443", "30s", "Service: connection refused"} {
		if err := s.notSynced(30 * time.Second); !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %q", err, want)
		}
	}
}
