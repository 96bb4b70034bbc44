package schedulers

import (
	"fmt"
	"slices"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// TestHash covers the schedulers that hash the client's address (sh, mh) or the virtual address (dh, lblc, lblcr).
func TestHash(t *testing.T) {
	w := onWorld(t)
	t.Run("sh is stable for a client", func(t *testing.T) { w.stable(t, "sh", "sh-fallback") })
	t.Run("mh is stable for a client", func(t *testing.T) { w.stable(t, "mh", "mh-fallback") })
	t.Run("by the virtual address", func(t *testing.T) { w.byAddress(t) })
	t.Run("nodes with different histories", func(t *testing.T) { w.histories(t) })
	t.Run("one of many endpoints is removed", func(t *testing.T) { w.oneRemoved(t) })
}

func (w *world) stable(t *testing.T, scheduler, flags string) {
	ten := w.backends[5:15]
	s := w.up(t, scheduler, scheduler, notes{"scheduler-flags": flags}, ten...)
	w.bothFamilies(t, func(t *testing.T, f cluster.Family) {
		met := map[cluster.Protocol][]string{}
		for proto, clients := range map[cluster.Protocol]int{cluster.UDP: 300, cluster.TCP: 40} {
			first := w.ask(t, proto, f, s.at(f), upTo(clients))
			if n := moved(first, w.ask(t, proto, f, s.at(f), upTo(clients))); n > 0 {
				t.Errorf("%s %s: %d of %d clients reached another endpoint the second time", scheduler, proto, n, clients)
			}
			if len(count(first)) < 9 {
				t.Errorf("%s %s: %d clients reached only %v", scheduler, proto, clients, count(first))
			}
			if f == cluster.V4 && proto == cluster.UDP {
				plot(t, fmt.Sprintf("%s, %d clients", scheduler, clients), count(first), ten)
			}
			met[proto] = first
		}
		if n := moved(met[cluster.TCP], met[cluster.UDP]); scheduler == "sh" && n > 0 {
			t.Errorf("sh: %d of %d clients reached different endpoints over UDP and TCP", n, len(met[cluster.TCP]))
		}
	})
	// With the fallback flag, clients of a draining endpoint move immediately.
	drained := ten[4].name
	s.notes = s.notes.with("weight-by-pod", drained+"=0")
	w.put(t, s)
	weights := alike(1, ten)
	weights[drained] = 0
	w.await(t, s, scheduler, weights)
	w.bothFamilies(t, func(t *testing.T, f cluster.Family) {
		if c := w.fromMany(t, 100, cluster.UDP, f, s.at(f)); c[drained] > 0 {
			t.Errorf("%s: %s is drained, but received connections: %v", scheduler, drained, c)
		}
	})
}

func moved(before, after []string) int {
	n := 0
	for i := range before {
		if before[i] != after[i] {
			n++
		}
	}
	return n
}

// One endpoint receives all connections, because the Service has only one address. With lblc and lblcr, connections
// move on once the endpoint has more open connections than its weight. With dh, clients are refused while the
// endpoint drains.
func (w *world) byAddress(t *testing.T) {
	four := w.backends[8:12]
	for _, scheduler := range []string{"dh", "lblc", "lblcr"} {
		s := w.up(t, scheduler, scheduler, notes{}, four...)
		w.agents[w.node1].AwaitLog(t, patience, `metadata.annotations[kube-ipvs.io/scheduler] "`+scheduler+`": works, but`)
		w.bothFamilies(t, func(t *testing.T, f cluster.Family) {
			c := w.fromMany(t, 60, cluster.UDP, f, s.at(f))
			if f == cluster.V4 {
				plot(t, scheduler+", short connections of 60 clients", c, four)
			}
			one := c.one(t, scheduler)
			h := w.hold(t, 20, f, s.at(f))
			defer h.closeAll("")
			if f == cluster.V4 {
				plot(t, scheduler+", open connections", h.counts(), four)
			}
			if scheduler == "dh" {
				h.counts().one(t, "dh")
			} else if len(h.counts()) < 2 {
				t.Errorf("%s: twenty open connections, far more than the weight of 1, all went to %v", scheduler, h.counts())
			}
			if scheduler != "dh" {
				return
			}
			s.notes = notes{"scheduler": "dh", "weight-by-pod": one + "=0"}
			w.put(t, s)
			weights := alike(1, four)
			weights[one] = 0
			w.await(t, s, "dh", weights)
			w.client.MustRefuse(t, cluster.TCP, s.at(f), slowly)
			record(t, "dh while %s drains: clients are refused (%s)", one, f)
			w.put(t, service{s.name, s.ips, notes{"scheduler": "dh"}, four})
			w.await(t, s, "dh", alike(1, four))
		})
	}
}

// histories changes endpoints while one node's agent is stopped. The kernel inserts new destinations at the front,
// so their order differs between the nodes.
func (w *world) histories(t *testing.T) {
	const clients = 300
	twelve := w.backends[4:16]
	sh := w.up(t, "history-sh", "sh", notes{"scheduler-flags": "sh-fallback"}, twelve...)
	mh := w.up(t, "history-mh", "mh", notes{"scheduler-flags": "mh-fallback"}, twelve...)
	both := []service{sh, mh}
	agreeing := func(t *testing.T, s service, f cluster.Family) float64 {
		at1 := w.ask(t, cluster.UDP, f, s.at(f), upTo(clients))
		var at2 []string
		w.through(t, w.node2, func() { at2 = w.ask(t, cluster.UDP, f, s.at(f), upTo(clients)) })
		return 100 - 100*float64(moved(at1, at2))/clients
	}
	for _, s := range both {
		w.bothFamilies(t, func(t *testing.T, f cluster.Family) {
			if a := agreeing(t, s, f); a != 100 {
				t.Errorf("%s: two nodes with the same history agree on %.1f%% of the clients, want all", s.name, a)
			}
		})
	}

	w.stopAgent(t, w.node2)
	for _, gone := range []int{3, 7} {
		for _, s := range both {
			fewer := s
			fewer.backends = slices.Delete(slices.Clone(twelve), gone, gone+1)
			w.put(t, fewer)
			w.awaitOn(t, w.node1, fewer, alike(1, fewer.backends))
			w.put(t, s)
			w.awaitOn(t, w.node1, s, alike(1, twelve))
		}
	}
	w.startAgent(t, w.node2)
	w.agents[w.node2].AwaitLog(t, patience, "initial sync complete")
	w.bothFamilies(t, func(t *testing.T, f cluster.Family) {
		a, b := agreeing(t, sh, f), agreeing(t, mh, f)
		record(t, "two endpoints of twelve were removed and added again on one node only (%s): "+
			"the nodes agree on %.1f %% of the clients with sh, on %.1f %% with mh", f, a, b)
		if b < 95 {
			t.Errorf("mh: nodes with different histories agree on only %.1f%% of the clients", b)
		}
		if a > 90 {
			t.Errorf("sh: nodes with different histories agree on %.1f%% of the clients; docs/schedulers.md states that they do not", a)
		}
	})
}

func (w *world) stopAgent(t *testing.T, node *cluster.Node) {
	t.Helper()
	if err := w.agents[node].Stop(patience); err != nil {
		t.Fatalf("stopping the agent on %s: %v", node.Name, err)
	}
}

func (w *world) awaitOn(t *testing.T, node *cluster.Node, s service, weights map[string]int) {
	t.Helper()
	cluster.Eventually(t, patience, node.Name+" has the endpoints of "+s.name, func() error {
		for _, f := range w.FamilyList() {
			have, err := s.stateOn(node, cluster.UDP, f)
			if err != nil {
				return err
			}
			if len(have.weights) != len(weights) {
				return fmt.Errorf("have %v", have.weights)
			}
		}
		return nil
	})
}

// Besides the removed endpoint's clients, only a few other clients move.
func (w *world) oneRemoved(t *testing.T) {
	const clients = 500
	for _, scheduler := range []string{"mh", "sh"} {
		s := w.up(t, "removed-"+scheduler, scheduler, notes{"scheduler-flags": scheduler + "-fallback"}, w.backends...)
		before := map[cluster.Family][]string{}
		for _, f := range w.FamilyList() {
			before[f] = w.ask(t, cluster.UDP, f, s.at(f), upTo(clients))
		}
		gone := s.backends[7].name
		s.backends = slices.Delete(slices.Clone(s.backends), 7, 8)
		w.put(t, s)
		w.await(t, s, scheduler, alike(1, s.backends))
		for _, f := range w.FamilyList() {
			after := w.ask(t, cluster.UDP, f, s.at(f), upTo(clients))
			had := count(before[f])[gone]
			others := moved(before[f], after) - had
			record(t, "%s, one of twenty endpoints is removed (%s): its %d clients of %d move, and %d others (%.1f %%)",
				scheduler, f, had, clients, others, 100*float64(others)/clients)
			if scheduler == "mh" && others > clients/20 {
				t.Errorf("mh: %d of %d clients moved although their endpoint stayed", others, clients)
			}
		}
	}
}
