package controlplane

import (
	"errors"
	"os"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/upstream"
)

// RequireVariable names the variable that makes tests fail rather than skip if the programs are not built.
const RequireVariable = "KUBE_IPVS_E2E"

// Start launches a control plane that stops with the test. If the programs are not built, Start skips the test.
func Start(t testing.TB, config Config) *ControlPlane {
	t.Helper()
	if config.Logf == nil {
		config.Logf = t.Logf
	}
	cp, err := Launch(t.Context(), config)
	if errors.Is(err, upstream.ErrNotBuilt) && os.Getenv(RequireVariable) != "1" {
		t.Skipf("SKIPPED, nothing was tested: %v", err)
	}
	if err != nil {
		t.Fatalf("launch the control plane: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, log := range []string{"etcd.log", "kube-apiserver.log"} {
				t.Logf("end of %s:\n%s", log, tail(cp.file(log)))
			}
		}
		if err := cp.Stop(); err != nil {
			t.Errorf("stop the control plane: %v", err)
		}
	})
	return cp
}
