package schedulers

import (
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/cluster"
)

// A bad annotation is a Problem that names it, its value and what is valid; the Service goes on as if it were not there.
func TestBadInput(t *testing.T) {
	w := onWorld(t)
	two := w.backends[9:11]
	s := w.up(t, "bad", "lc", notes{}, two...)
	for _, bad := range []struct{ key, value, says string }{
		{"scheduler", "fastest", "must be one of rr, wrr"},
		{"scheduler", "twos", "this node's kernel has no such scheduler: rr is used until it has the module ip_vs_twos"},
		{"kube-router.io/service.scheduler", "fastest", "must be one of rr, wrr"},
		{"scheduler-flags", "sh-port", "needs a valid annotation"},
		{"weight", "2147483648", "from 0 to 2147483647"},
		{"weight", "-1", "from 0 to 2147483647"},
		{"affinity-timeout", "-5s", "must be a duration"},
		{"affinity-timeout", "99999h", "must be a duration"},
		{"affinity-prefix-ipv4", "64", "from 1 to 32"},
		{"max-connections", "1,2", "from 1 to 4294967295"},
		{"weight-by-pod", "w10:0", "must be name=weight"},
		{"slow-start", "2h", "must be a duration"},
		{"one-packet", "yes", "must be true or false"},
		{"canary", "5%", "is no annotation of kube-ipvs"},
	} {
		s.notes = notes{bad.key: bad.value}
		if bad.key == "scheduler" || bad.key == "scheduler-flags" || bad.key == "kube-router.io/service.scheduler" {
			w.put(t, s)
			w.await(t, s, "rr", alike(1, two))
		} else {
			s.notes = s.notes.with("scheduler", "lc")
			w.put(t, s)
		}
		for _, node := range w.Nodes {
			w.agents[node].AwaitLog(t, patience, bad.says)
		}
		if bad.key != "scheduler" && s.notes["scheduler"] == "lc" {
			w.await(t, s, "lc", alike(1, two))
		}
		w.client.Get(t, cluster.TCP, s.at(cluster.V4), slowly)
	}
}

// A node whose kernel lacks the configured scheduler serves with rr, and says so.
func TestNodeWithoutItsScheduler(t *testing.T) {
	w := onWorld(t)
	w.stopAgent(t, w.node2)
	w.startAgent(t, w.node2, "--ipvs-scheduler", "twos")
	t.Cleanup(func() {
		w.stopAgent(t, w.node2)
		w.startAgent(t, w.node2)
		w.agents[w.node2].AwaitLog(t, patience, "in place")
	})
	w.agents[w.node2].AwaitLog(t, patience, `"twos": this node's kernel has no such scheduler: rr is used for Services that do not name another one`)
	w.agents[w.node2].AwaitLog(t, patience, "in place")
	two := w.backends[9:11]
	s := w.service(t, "usual", notes{}, two)
	w.await(t, s, "rr", alike(1, two))
	w.through(t, w.node2, func() {
		w.bothFamilies(t, func(t *testing.T, f cluster.Family) {
			w.crowd(t, 20, cluster.TCP, f, s.at(f)).want(t, "rr in place of twos", alike(1, two), 5)
		})
	})
	if log := w.agents[w.node2].Log(); strings.Contains(log, "pass failed") {
		t.Errorf("a missing scheduler makes passes fail:\n%s", log)
	}
}
