package coexist

import (
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// TestTwoAgents starts a second agent on a node. It waits, logs why, changes nothing, and takes over when the first agent ends.
func TestTwoAgents(t *testing.T) {
	w := onWorld(t)
	first := w.agents[w.node1]
	before := dump(t, w.node1, showAll)
	w.startAgent(t, w.node1, "--ipvs-scheduler", "wlc")
	second := w.agents[w.node1]
	t.Cleanup(func() {
		w.stopAgent(t, w.node1)
		w.startAgent(t, w.node1)
		w.agents[w.node1].AwaitLog(t, patience, "initial sync complete")
	})
	second.AwaitLog(t, patience, "waiting for the node lock")
	second.AwaitLog(t, patience, "another kube-ipvs is running on this node")
	compareDumps(t, "while the second agent waits", before, dump(t, w.node1, showAll))
	flows := w.client.OpenFlows(t, 4, cluster.TCP, w.farService().at(cluster.V4, http), cluster.FlowConfig{Within: patience})
	if err := first.Stop(patience); err != nil {
		t.Errorf("stop the first agent: %v", err)
	}
	second.AwaitLog(t, patience, "initial sync complete")
	flows.AwaitRound(t, patience)
	flows.MustBeUnharmed(t)
	w.mustPass(t, cluster.V4)
}
