package coexist

import (
	"fmt"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// hostPorts recreates the portmap plugin's rules. Ports 80 and 53, which every Service uses, lead to $POD. Port 80
// on $SECOND and 80/udp lead to $OTHER.
const hostPorts = `
pod=$POD; other=$OTHER; test $V = 4 || { pod=[$POD]; other=[$OTHER]; }
for chain in CNI-HOSTPORT-DNAT CNI-HOSTPORT-SETMARK CNI-HOSTPORT-MASQ; do ipt -t nat -N $chain; done
ipt -t nat -A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
ipt -t nat -A OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
ipt -t nat -I POSTROUTING -j CNI-HOSTPORT-MASQ
ipt -t nat -A CNI-HOSTPORT-SETMARK -j MARK --or-mark 0x2000
ipt -t nat -A CNI-HOSTPORT-MASQ -m mark --mark 0x2000/0x2000 -j MASQUERADE
ipt -t nat -A CNI-HOSTPORT-DNAT -s $HERE -j CNI-HOSTPORT-SETMARK
ipt -t nat -A CNI-HOSTPORT-DNAT -p tcp --dport 80 -d $SECOND -j DNAT --to-destination $other:8080
ipt -t nat -A CNI-HOSTPORT-DNAT -p udp --dport 80 -j DNAT --to-destination $other:5353
ipt -t nat -A CNI-HOSTPORT-DNAT -p tcp --dport 80 -j DNAT --to-destination $pod:8080
ipt -t nat -A CNI-HOSTPORT-DNAT -p udp --dport 53 -j DNAT --to-destination $pod:5353
ipt -t nat -A CNI-HOSTPORT-DNAT -p tcp --dport 9999 -j DNAT --to-destination $pod:8080
`

// Virtual addresses are local addresses, so the rules for host ports match them too.
func TestHostPorts(t *testing.T) {
	// proves: 132
	w := onWorld(t)
	pods := map[string]*cluster.Pod{}
	for _, name := range []string{"host-port", "other-port"} {
		pod := w.node1.Pod(t, name)
		t.Cleanup(func() { _ = pod.Delete() })
		for _, p := range ports {
			pod.Serve(t, p.protocol, p.target)
		}
		pods[name] = pod
	}
	second := map[cluster.Family]string{cluster.V4: "192.168.50.99", cluster.V6: "fd00:50::99"}
	for _, f := range both {
		names := fmt.Sprintf("POD=%s OTHER=%s SECOND=%s\n", pods["host-port"].Addr(f), pods["other-port"].Addr(f), second[f])
		w.othersRules(t, w.node1, names+hostPorts, f)
	}
	t.Run("work: one port, different addresses and protocols", func(t *testing.T) {
		for _, f := range both {
			for _, from := range []*cluster.Host{w.outside, w.far.Host, w.client.Host} {
				source := w.source(f, from, from != w.client.Host)
				for _, p := range []path{
					{from, cluster.TCP, w.node1.At(f, 80), "host-port", source},
					{from, cluster.UDP, w.node1.At(f, 53), "host-port", source},
					{from, cluster.UDP, w.node1.At(f, 80), "other-port", source},
				} {
					if err := p.walk(); err != nil {
						t.Error(err)
					}
				}
			}
			prefix := second[f] + map[cluster.Family]string{cluster.V4: "/24", cluster.V6: "/64"}[f]
			w.node1.AddAddr(t, "eth0", prefix)
			at := map[cluster.Family]string{cluster.V4: second[f] + ":80", cluster.V6: "[" + second[f] + "]:80"}[f]
			if got := w.outside.Get(t, cluster.TCP, at, slowly); got.Server != "other-port" {
				t.Errorf("%s: %s answered", at, got.Server)
			}
			// If this address stayed, the kernel could choose it as the node's source address.
			w.node1.MustRun(t, "ip", "addr", "del", prefix, "dev", "eth0")
		}
	})
	t.Run("do not capture Service traffic", func(t *testing.T) { w.mustPass(t, both...) })
	t.Run("do not capture other ports of virtual addresses", func(t *testing.T) {
		for _, f := range both {
			for _, from := range []*cluster.Host{w.client.Host, w.outside, w.node1.Host} {
				empty, near := w.emptyService(), w.nearService()
				from.MustRefuse(t, cluster.TCP, empty.at(f, http), slowly)
				from.MustRefuse(t, cluster.TCP, empty.atBalancer(f, http), slowly)
				from.MustRefuse(t, cluster.TCP, near.at(f, port{port: 9999}), slowly)
				if from != w.node1.Host { // IPVS returns "operation not permitted" to programs on the node
					from.MustRefuse(t, cluster.UDP, empty.at(f, dns), slowly)
				}
			}
		}
	})
}
