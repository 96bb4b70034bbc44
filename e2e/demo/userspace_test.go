package main

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// TestDemoWithoutRoot runs the demo of the data plane in user space.
func TestDemoWithoutRoot(t *testing.T) {
	agent := filepath.Join(t.TempDir(), "kube-ipvs")
	if out, err := exec.Command("go", "build", "-o", agent, "../../cmd/kube-ipvs").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Setenv("KUBE_IPVS_DATA_PLANE", kernel.DataPlaneUserspace)
	if err := run(agent); err != nil {
		t.Fatal(err)
	}
}
