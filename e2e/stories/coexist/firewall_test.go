package coexist

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// firewall accepts established connections, ICMP (which IPv6 requires) and SSH, and forwards nothing.
const firewall = `
ipt -P INPUT DROP
ipt -P FORWARD DROP
ipt -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
ipt -A INPUT -i lo -j ACCEPT
ipt -A INPUT -p $(test $V = 4 && echo icmp || echo ipv6-icmp) -j ACCEPT
ipt -A INPUT -p tcp --dport 22 -j ACCEPT
`

// rejecting is the same firewall in Red Hat's style, with a final REJECT rule.
const rejecting = `
ipt -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
ipt -A INPUT -i lo -j ACCEPT
ipt -A INPUT -p $(test $V = 4 && echo icmp || echo ipv6-icmp) -j ACCEPT
ipt -A INPUT -j REJECT
ipt -A FORWARD -j REJECT
`

// Packets for Services traverse INPUT, even if the endpoint is on another node.
func TestHostFirewall(t *testing.T) {
	w := onWorld(t)
	t.Run("stops Services", func(t *testing.T) {
		w.othersRules(t, w.node1, firewall, both...)
		for _, f := range both {
			near := w.nearService()
			w.client.MustTimeout(t, cluster.TCP, near.at(f, http))
			w.outside.MustTimeout(t, cluster.TCP, near.atNode(f, http, w.node1))
			w.outside.MustTimeout(t, cluster.UDP, near.atBalancer(f, dns))
			if page, err := w.askForHealth(f); err == nil {
				t.Errorf("the health check port answered %+v", page)
			}
			// Replies to the node's own packets belong to established connections.
			if err := (path{w.node1.Host, cluster.TCP, near.at(f, http), "web-1", w.node1.Addr(f)}).walk(); err != nil {
				t.Error(err)
			}
		}
	})
	w.restartAgent(t, w.node1, "--accept-service-traffic", "--ipvs-sync-period", "10s")
	t.Run("passes Services that the agent accepts", func(t *testing.T) {
		w.othersRules(t, w.node1, firewall, both...)
		w.mustPass(t, both...)
		for _, f := range both {
			cluster.Eventually(t, patience, "the health check port reports the local endpoint", func() error {
				page, err := w.askForHealth(f)
				if err == nil && page.Status != 200 {
					err = fmt.Errorf("%+v", page)
				}
				return err
			})
		}
		w.closedPorts(t)
	})
	t.Run("the last rule rejects", func(t *testing.T) {
		w.othersRules(t, w.node1, rejecting, both...)
		w.mustPass(t, both...)
	})
	t.Run("a REJECT rule before kube-ipvs's rules is obeyed", w.ruleInFront)
}

func (w *world) askForHealth(f cluster.Family) (cluster.Page, error) {
	return w.outside.HTTPGet("http://"+w.node1.At(f, healthPort)+"/", slowly)
}

func (w *world) ruleInFront(t *testing.T) {
	w.othersRules(t, w.node1, "ipt -I INPUT -p tcp -m multiport --dports 80,30001 -j REJECT --reject-with tcp-reset", both...)
	refused := func() {
		t.Helper()
		for _, f := range both {
			near := w.nearService()
			w.client.MustRefuse(t, cluster.TCP, near.at(f, http), slowly)
			w.outside.MustRefuse(t, cluster.TCP, near.atNode(f, http, w.node1), slowly)
			w.outside.Get(t, cluster.UDP, near.atNode(f, dns, w.node1), slowly)
		}
	}
	refused()
	w.repaired(t, w.node1, w.nearService())
	refused()
	if first := lines(w.node1.MustRun(t, "iptables", "-w", "-S", "INPUT"))[1]; !strings.Contains(first, "REJECT") {
		t.Errorf("the first rule of INPUT is now %s", first)
	}
}

func (w *world) closedPorts(t *testing.T) {
	t.Helper()
	w.node1.Serve(t, cluster.TCP, 9000, cluster.As("daemon"))
	for _, f := range both {
		w.outside.MustTimeout(t, cluster.TCP, w.node1.At(f, 9000))
		w.outside.MustRefuse(t, cluster.TCP, fmt.Sprintf(map[cluster.Family]string{cluster.V4: "%s:9000", cluster.V6: "[%s]:9000"}[f],
			w.nearService().balancer(f)), slowly)
	}
}
