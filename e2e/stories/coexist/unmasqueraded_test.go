package coexist

import (
	"errors"
	"syscall"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// The kernel decides once for each flow whether it is masqueraded. Clients that keep their port must get replies soon after the repair, even if their
// flow began before it.
func TestFlowsThatBeganBeforeTheRepair(t *testing.T) {
	w := onWorld(t)
	type client struct {
		name string
		path
	}
	var clients []client
	for _, p := range ports {
		clients = append(clients,
			client{"outside", path{w.outside, p.protocol, w.farService().atNode(cluster.V4, p, w.node1), "web-2", w.node1.V4}},
			client{"a pod to itself", path{w.near.Host, p.protocol, w.nearService().at(cluster.V4, p), "web-1", w.node1.V4}},
			client{"the node", path{w.node1.Host, p.protocol, w.farService().at(cluster.V4, p), "web-2", w.node1.V4}},
		)
	}
	silence, port := cluster.Within(cluster.DefaultSilence), uint16(20000)
	for _, damage := range []string{"ipset flush", "iptables -w -t nat -F"} {
		t.Run(damage, func(t *testing.T) {
			for _, c := range clients {
				c.from.Await(t, patience, c.proto, c.to)
			}
			if err := w.agents[w.node1].Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = w.agents[w.node1].Signal(syscall.SIGCONT) })
			w.node1.MustRun(t, "sh", "-ec", damage)
			first := port
			for _, c := range clients {
				port++
				if got := c.from.Probe(c.proto, c.to, silence, cluster.FromPort(port)); got.Outcome != cluster.Timeout {
					t.Errorf("%s -> %s %s: %s; a client without masquerading should get no reply", c.name, c.to, c.proto, got)
				}
			}
			if err := w.agents[w.node1].Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			cluster.Eventually(t, patience, "clients with the same ports get replies", func() (err error) {
				for i, c := range clients {
					err = errors.Join(err, c.judge(c.from.Probe(c.proto, c.to, silence, cluster.FromPort(first+1+uint16(i)))))
				}
				return err
			})
		})
	}
}
