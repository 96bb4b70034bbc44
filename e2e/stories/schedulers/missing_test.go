package schedulers

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// A kernel that lacks a scheduler, and gets it later. Meanwhile rr serves in its place: for the Service that names the scheduler, on
// every node, and for all others on the node whose configuration does; both are told. With the module there the next audit takes it,
// under open connections: agents run on, virtual servers stay, and nobody is told anything any more.
func TestSchedulerThatComesLater(t *testing.T) {
	w := onWorld(t)
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
	named, usual := w.service(t, "named", notes{"scheduler": "sed"}, two), w.service(t, "usual", notes{}, two)
	w.await(t, named, "rr", alike(1, two))
	w.await(t, usual, "rr", alike(1, two))
	for _, node := range w.Nodes {
		w.agents[node].AwaitLog(t, patience, "this node's kernel has no such scheduler: rr is used until it has the module ip_vs_sed")
	}
	w.awaitLack(t, "is told", true)

	var flows []*cluster.Flows
	made := map[cluster.Family]int{}
	w.bothFamilies(t, func(t *testing.T, f cluster.Family) {
		w.crowd(t, 20, cluster.TCP, f, named.at(f)).want(t, "rr in place of sed", alike(1, two), 5)
		w.through(t, w.node2, func() { w.crowd(t, 20, cluster.TCP, f, usual.at(f)).want(t, "rr in place of sed", alike(1, two), 5) })
		made[f] = w.awaitConnections(t, named, f)
	})
	for _, f := range w.FamilyList() {
		config := cluster.FlowConfig{Every: time.Second, Within: 20 * time.Second, Max: 10 * time.Minute}
		flows = append(flows, w.client.OpenFlows(t, 20, cluster.TCP, named.at(f), config),
			w.backends[10].pod.OpenFlows(t, 20, cluster.TCP, usual.at(f), config)) // of node-2
	}
	began := time.Now()
	show()
	w.await(t, named, "sed", alike(1, two))
	w.awaitSaved(t, w.node2, usual, "-s sed")
	record(t, "a scheduler's module came: used after %.0f s", time.Since(began).Seconds())
	w.awaitLack(t, "is told no more", false)
	w.awaitSaved(t, w.node1, usual, "-s rr")
	for _, f := range flows {
		f.AwaitRound(t, patience)
		t.Log(f.MustBeUnharmed(t))
	}
	for _, f := range w.FamilyList() {
		if n := w.connectionsMade(t, named, f); n < made[f] {
			t.Errorf("the virtual server has counted %d connections, before %d: it is another one", n, made[f])
		}
	}
	if log := w.agents[w.node2].Log(); strings.Contains(log, "sync failed") { // the first node learns from a failed sync that the scheduler is missing
		t.Errorf("a scheduler that is known to be missing makes passes fail:\n%s", log)
	}
}

// awaitLack waits until it is told, or not told, that the kernel lacks a scheduler: on every node at the Service that names it, and as
// the second node's own problem.
func (w *world) awaitLack(t *testing.T, what string, want bool) {
	t.Helper()
	for _, asked := range []struct {
		node *cluster.Node
		args []string
	}{
		{w.node1, []string{"services", "default/named"}}, {w.node2, []string{"services", "default/named"}}, {w.node2, []string{"status"}},
	} {
		cluster.Eventually(t, patience, fmt.Sprintf("the lack %s by %v on %s", what, asked.args, asked.node.Name), func() error {
			if said := w.inspect(t, asked.node, asked.args...); strings.Contains(said, "this node's kernel has no such scheduler") != want {
				return fmt.Errorf("it says\n%s", said)
			}
			return nil
		})
	}
}
