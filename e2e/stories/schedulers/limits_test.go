package schedulers

import (
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// TestLimits checks that an endpoint at its connection limit receives no new connections until it drops below the
// lower limit. Both settings can be changed and removed, even while the agent is stopped.
func TestLimits(t *testing.T) {
	w := onWorld(t)
	two := w.backends[9:11]
	s := w.up(t, "limits", "rr", notes{"max-connections": "4", "resume-connections": "2"}, two...)

	w.bothFamilies(t, func(t *testing.T, f cluster.Family) {
		h := w.hold(t, 8, f, s.at(f))
		defer h.closeAll("")
		h.counts().want(t, "up to the ceiling", alike(1, two), 0.1)
		w.client.MustRefuse(t, cluster.TCP, s.at(f), slowly)
		record(t, "max-connections 4 with two endpoints: the ninth open connection is refused (%s)", f)
		way := w.inspect(t, w.node1, "explain", "-v", s.at(f)+"/TCP", "--from", w.client.Addr(f).String())
		for _, text := range []string{"at its limit of 4 connections", "no endpoint accepts new connections"} {
			if !strings.Contains(way, text) {
				t.Errorf("explain does not show %q:\n%s", text, way)
			}
		}

		// UDP flows expire after two seconds; closed TCP connections count for two minutes.
		flows := make([]*cluster.Conn, 8)
		for i := range flows {
			flows[i] = w.client.Open(t, cluster.UDP, s.at(f), slowly)
		}
		if r := w.client.Probe(cluster.UDP, s.at(f)); r.Outcome == cluster.Answered {
			t.Errorf("the ninth UDP flow was answered by %s", r.Reply.Server)
		}
		for _, flow := range flows {
			flow.Close()
		}
		w.client.Await(t, patience, cluster.UDP, s.at(f))
	})

	for _, step := range []struct{ limit, want string }{
		{"3", "-x 3 -y 2\n"}, {"1000", "-x 1000 -y 2\n"},
	} {
		s.notes = notes{"scheduler": "rr", "max-connections": step.limit, "resume-connections": "2"}
		w.put(t, s)
		for _, node := range w.Nodes {
			w.awaitSaved(t, node, s, step.want)
		}
	}
	// A restarted agent removes old limits.
	w.stopAgent(t, w.node1)
	s.notes = notes{"scheduler": "rr"}
	w.put(t, s)
	w.startAgent(t, w.node1)
	for _, node := range w.Nodes {
		w.awaitSaved(t, node, s, "-w 1\n")
	}
	w.bothFamilies(t, func(t *testing.T, f cluster.Family) { w.hold(t, 10, f, s.at(f)).closeAll("") })
}
