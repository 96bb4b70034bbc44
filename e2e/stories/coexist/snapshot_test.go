package coexist

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// TestBootWithoutAPIServer reboots a node while the API server is unavailable. The agent serves other nodes'
// endpoints from its snapshot.
func TestBootWithoutAPIServer(t *testing.T) {
	w := onWorld(t)
	api, kubeconfig := w.controlPlane(t)
	file, socket := filepath.Join(t.TempDir(), "snapshot"), filepath.Join(t.TempDir(), "status.sock")
	agent := func() *cluster.Process {
		return w.node3.MustStart(t, cluster.AgentBinary(t), "run", "--kubeconfig", kubeconfig, "--hostname-override", w.node3.Name,
			"--cluster-cidr", podCIDRs, "--conntrack-max-per-core", "0", "--snapshot-file", file, "--status-socket", socket)
	}
	served := func() {
		t.Helper()
		for _, f := range both {
			w.spareClient.Get(t, cluster.TCP, w.farService().at(f, http))
		}
	}
	first := agent()
	first.AwaitLog(t, patience, "initial sync complete")
	served()
	if err := first.Stop(patience); err != nil { // the agent writes the snapshot when it stops
		t.Fatal(err)
	}
	api.StopAPIServer()
	// A reboot would clear the kernel's state.
	if out, err := cleanup(t, w.node3); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	second := agent()
	second.AwaitLog(t, patience, "API server unavailable; serving the snapshot")
	served()
	status, _ := w.node3.Run(cluster.AgentBinary(t), "status", "--status-socket", socket)
	if !strings.Contains(status, "is served until the API server responds") {
		t.Errorf("status:\n%s", status)
	}
	if err := api.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	second.AwaitLog(t, patience, "initial sync complete")
	served()
	if err := second.Stop(patience); err != nil {
		t.Error(err)
	}
	if out, err := cleanup(t, w.node3); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
