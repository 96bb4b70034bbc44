package schedulers

import (
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// With an invalid annotation, the Service works as if the annotation were absent.
func TestBadInput(t *testing.T) {
	w := onWorld(t)
	two := w.backends[9:11]
	s := w.up(t, "bad", "lc", notes{}, two...)
	for _, bad := range []struct{ key, value, says string }{
		{"scheduler", "fastest", "must be one of rr, wrr"},
		{"kube-router.io/service.scheduler", "fastest", "must be one of rr, wrr"},
		{"scheduler-flags", "sh-port", "requires a valid annotation"},
		{"weight", "2147483648", "from 0 to 2147483647"},
		{"weight", "-1", "from 0 to 2147483647"},
		{"affinity-timeout", "-5s", "must be a duration"},
		{"affinity-timeout", "99999h", "must be a duration"},
		{"affinity-prefix-ipv4", "64", "from 1 to 32"},
		{"max-connections", "1,2", "from 1 to 2147483647"},
		{"weight-by-pod", "w10:0", "must be name=weight"},
		{"slow-start", "2h", "must be a duration"},
		{"one-packet", "yes", "must be true or false"},
		{"canary", "5%", "unknown kube-ipvs.io annotation"},
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
