package coexist

import (
	"errors"
	"syscall"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// flowClient is a client that keeps its port.
type flowClient struct {
	name string
	path
	port uint16
}

func (c flowClient) probe() cluster.Result {
	return c.from.Probe(c.proto, c.to, cluster.Within(cluster.DefaultSilence), cluster.FromPort(c.port))
}

// The kernel decides once for each flow whether it is masqueraded. Clients that keep their port must get replies soon after the repair, even if their
// flow began before it. Flows with replies stay.
func TestFlowsThatBeganBeforeTheRepair(t *testing.T) {
	w := onWorld(t)
	port := uint16(20000)
	client := func(name string, p path) flowClient {
		port++
		return flowClient{name, p, port}
	}
	for _, damage := range []string{"ipset flush", "iptables -w -t nat -F; ip6tables -w -t nat -F"} {
		t.Run(damage, func(t *testing.T) {
			var broken []flowClient
			for _, f := range []cluster.Family{cluster.V4, cluster.V6} {
				node := w.node1.Addr(f)
				for _, p := range ports {
					broken = append(broken,
						client("outside", path{w.outside, p.protocol, w.farService().atNode(f, p, w.node1), "web-2", node}),
						client("a pod to itself", path{w.near.Host, p.protocol, w.nearService().at(f, p), "web-1", node}),
						client("the node", path{w.node1.Host, p.protocol, w.farService().at(f, p), "web-2", node}),
					)
				}
			}
			masqueraded := client("outside", path{w.outside, cluster.UDP, w.farService().atNode(cluster.V4, dns, w.node1), "web-2", w.node1.V4})
			// The endpoint is on the same node, so replies return although the client is not masqueraded.
			near := client("outside", path{w.outside, cluster.UDP, w.nearService().atNode(cluster.V4, dns, w.node1), "web-1", w.outside.V4})
			for _, c := range append(broken, near) {
				c.from.Await(t, patience, c.proto, c.to)
			}
			before := masqueraded.probe()
			if err := w.agents[w.node1].Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = w.agents[w.node1].Signal(syscall.SIGCONT) })
			w.node1.MustRun(t, "sh", "-ec", damage)
			for _, c := range broken {
				if got := c.probe(); got.Outcome != cluster.Timeout {
					t.Errorf("%s -> %s %s: %s; a client without masquerading should get no reply", c.name, c.to, c.proto, got)
				}
			}
			stays := near.probe()
			if err := w.agents[w.node1].Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			cluster.Eventually(t, patience, "clients with the same ports get replies", func() (err error) {
				for _, c := range broken {
					err = errors.Join(err, c.judge(c.probe()))
				}
				return err
			})
			if err := near.judge(stays); err != nil {
				t.Error(err)
			}
			for c, had := range map[flowClient]cluster.Result{masqueraded: before, near: stays} {
				if got := c.probe(); got.Reply.Source != had.Reply.Source || got.Reply.Port != had.Reply.Port {
					t.Errorf("%s -> %s: the server saw %s before and %s after the repair, so the flow was ended", c.name, c.to, had.Reply.From(), got.Reply.From())
				}
			}
		})
	}
}
