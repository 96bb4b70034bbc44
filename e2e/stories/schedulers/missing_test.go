package schedulers

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// TestSchedulerModuleLoadedLater starts without a scheduler's kernel module. Until the module is loaded, rr
// replaces the scheduler, and the agents report a Problem. The next audit then changes the scheduler without
// recreating virtual servers.
func TestSchedulerModuleLoadedLater(t *testing.T) {
	w := onWorld(t)
	cluster.NeedPauses(t)
	show := w.hide(t, "sed")
	w.stopAgent(t, w.node2)
	w.startAgent(t, w.node2, "--ipvs-scheduler", "sed")
	t.Cleanup(func() {
		w.stopAgent(t, w.node2)
		w.startAgent(t, w.node2)
		w.agents[w.node2].AwaitLog(t, patience, "initial sync complete")
	})
	w.agents[w.node2].AwaitLog(t, patience, `"sed": this node's kernel has no such scheduler: rr is used for Services that do not name another one`)
	w.agents[w.node2].AwaitLog(t, patience, "initial sync complete")
	two := w.backends[8:10]
	named, unnamed := w.service(t, "named", notes{"scheduler": "sed"}, two), w.service(t, "unnamed", notes{}, two)
	w.await(t, named, "rr", alike(1, two))
	w.await(t, unnamed, "rr", alike(1, two))
	for _, node := range w.Nodes {
		w.agents[node].AwaitLog(t, patience, "this node's kernel has no such scheduler: rr is used until it has the module ip_vs_sed")
	}
	w.awaitReport(t, "reported", true)

	var flows []*cluster.Flows
	made := map[cluster.Family]int{}
	w.bothFamilies(t, func(t *testing.T, f cluster.Family) {
		w.fromMany(t, 20, cluster.TCP, f, named.at(f)).want(t, "rr in place of sed", alike(1, two), 5)
		w.through(t, w.node2, func() {
			w.fromMany(t, 20, cluster.TCP, f, unnamed.at(f)).want(t, "rr in place of sed", alike(1, two), 5)
		})
		made[f] = w.awaitConnections(t, named, f)
	})
	for _, f := range w.FamilyList() {
		config := cluster.FlowConfig{Every: time.Second, Within: 20 * time.Second, Max: 10 * time.Minute}
		flows = append(flows, w.client.OpenFlows(t, 20, cluster.TCP, named.at(f), config),
			w.backends[10].pod.OpenFlows(t, 20, cluster.TCP, unnamed.at(f), config)) // of node-2
	}
	began := time.Now()
	show()
	w.await(t, named, "sed", alike(1, two))
	w.awaitSaved(t, w.node2, unnamed, "-s sed")
	record(t, "a scheduler's module was loaded: used after %.0f s", time.Since(began).Seconds())
	w.awaitReport(t, "not reported", false)
	w.awaitSaved(t, w.node1, unnamed, "-s rr")
	for _, f := range flows {
		f.AwaitRound(t, patience)
		t.Log(f.MustBeUnharmed(t))
	}
	for _, f := range w.FamilyList() {
		if n := w.connectionsMade(t, named, f); n < made[f] {
			t.Errorf("the virtual server was recreated: its connection counter is %d, and was %d before", n, made[f])
		}
	}
	if log := w.agents[w.node2].Log(); strings.Contains(log, "sync failed") { // only the first node learns from a failed sync that the scheduler is missing
		t.Errorf("a sync failed because of a scheduler already known to be missing:\n%s", log)
	}
}

func (w *world) awaitReport(t *testing.T, what string, want bool) {
	t.Helper()
	for _, command := range []struct {
		node *cluster.Node
		args []string
	}{
		{w.node1, []string{"services", "default/named"}}, {w.node2, []string{"services", "default/named"}}, {w.node2, []string{"status"}},
	} {
		cluster.Eventually(t, patience, fmt.Sprintf("the missing scheduler is %s by %v on %s", what, command.args, command.node.Name), func() error {
			if output := w.inspect(t, command.node, command.args...); strings.Contains(output, "this node's kernel has no such scheduler") != want {
				return fmt.Errorf("it printed\n%s", output)
			}
			return nil
		})
	}
}
