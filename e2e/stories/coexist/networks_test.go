package coexist

import (
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// network recreates the essential rules of a network plugin. Its chains come before those of kube-ipvs, as they
// do after the plugin restarts.
type network struct {
	name     string
	families []cluster.Family
	rules    string
	undo     string // removes state other than rules
	met      string // packets for Services must match this rule; otherwise the test proves nothing
	// lost reports whether this network plugin breaks a path with any proxy.
	lost func(w *world, p path) bool
}

var both = []cluster.Family{cluster.V4, cluster.V6}

var networks = []network{
	{name: "Flannel: masquerades traffic that leaves the pod ranges or enters them for pods on other nodes", families: both,
		met: "-A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -j RETURN", rules: `
ipt -P FORWARD DROP
ipt -N FLANNEL-FWD
ipt -I FORWARD -j FLANNEL-FWD
ipt -A FLANNEL-FWD -s $PODS -j ACCEPT
ipt -A FLANNEL-FWD -d $PODS -j ACCEPT
ipt -t nat -N FLANNEL-POSTRTG
ipt -t nat -I POSTROUTING -j FLANNEL-POSTRTG
ipt -t nat -A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -j RETURN
ipt -t nat -A FLANNEL-POSTRTG -s $HERE -d $PODS -j RETURN
ipt -t nat -A FLANNEL-POSTRTG -s $PODS -d $HERE -j RETURN
ipt -t nat -A FLANNEL-POSTRTG ! -s $PODS -d $HERE -j RETURN
ipt -t nat -A FLANNEL-POSTRTG -s $PODS ! -d $MULTICAST -j MASQUERADE --random-fully
ipt -t nat -A FLANNEL-POSTRTG ! -s $PODS -d $PODS -j MASQUERADE --random-fully
`},
	{name: "Calico, which has seen kube-ipvs0: marks in filter INPUT, judges in OUTPUT, drops unknown workloads", families: both,
		met: "-A cali-OUTPUT -m mark ! --mark 0x0/0xfff00000 -g cali-forward-endpoint-mark", rules: calico, undo: `
ipset destroy cali${V}this-host
ipset destroy cali${V}all-pools
`},
	{name: "Weave: drops pods' packets without its mark, and masquerades between pods and others", families: both,
		met: "-A INPUT -i pod-+ -j WEAVE-NPC-EGRESS", rules: `
ipt -P FORWARD DROP
for chain in WEAVE-NPC WEAVE-NPC-DEFAULT WEAVE-NPC-EGRESS WEAVE-NPC-EGRESS-DEFAULT; do ipt -N $chain; done
ipt -I FORWARD -o pod-+ -j WEAVE-NPC
ipt -I FORWARD -i pod-+ -j WEAVE-NPC-EGRESS
ipt -I INPUT -i pod-+ -j WEAVE-NPC-EGRESS
ipt -A FORWARD -o pod-+ -j DROP
ipt -A FORWARD -i pod-+ -j ACCEPT
ipt -A WEAVE-NPC -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
ipt -A WEAVE-NPC -d $MULTICAST -j ACCEPT
ipt -A WEAVE-NPC -m conntrack --ctstate NEW -j WEAVE-NPC-DEFAULT
ipt -A WEAVE-NPC-DEFAULT -d $HERE -j ACCEPT
ipt -A WEAVE-NPC-EGRESS -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
ipt -A WEAVE-NPC-EGRESS -m addrtype --dst-type LOCAL -j RETURN
ipt -A WEAVE-NPC-EGRESS -d $MULTICAST -j RETURN
ipt -A WEAVE-NPC-EGRESS -m conntrack --ctstate NEW -j WEAVE-NPC-EGRESS-DEFAULT
ipt -A WEAVE-NPC-EGRESS -m mark ! --mark 0x40000/0x40000 -j DROP
ipt -A WEAVE-NPC-EGRESS-DEFAULT -s $HERE -j MARK --or-mark 0x40000
ipt -A WEAVE-NPC-EGRESS-DEFAULT -s $HERE -j RETURN
ipt -t nat -N WEAVE
ipt -t nat -I POSTROUTING -j WEAVE
ipt -t nat -A WEAVE -d $HERE -j RETURN
ipt -t nat -A WEAVE -s $PODS -d $MULTICAST -j RETURN
ipt -t nat -A WEAVE ! -s $PODS -d $PODS -j MASQUERADE
ipt -t nat -A WEAVE -s $PODS ! -d $PODS -j MASQUERADE
`},
	{name: "Cilium, chained: an identity in the upper bits of the mark, a mark on what the host sends",
		families: both, met: "-A PREROUTING -i pod-+ -j MARK --set-xmark 0xabcd0f01/0xffffffff", rules: `
ipt -P FORWARD DROP
ipt -t raw -I PREROUTING -i pod-+ -j MARK --set-mark 0xabcd0f01
for chain in CILIUM_INPUT CILIUM_OUTPUT CILIUM_FORWARD; do ipt -N $chain; ipt -I ${chain#CILIUM_} -j $chain; done
ipt -A CILIUM_INPUT -m mark --mark 0x200/0xf00 -j ACCEPT
ipt -A CILIUM_OUTPUT -m mark --mark 0xa00/0xe00 -j ACCEPT
ipt -A CILIUM_OUTPUT -m mark --mark 0xe00/0xe00 -j RETURN
ipt -A CILIUM_OUTPUT -m mark --mark 0xd00/0xf00 -j RETURN
ipt -A CILIUM_OUTPUT -j MARK --set-xmark 0xc00/0xf00
ipt -A CILIUM_FORWARD -i pod-+ -j ACCEPT
ipt -A CILIUM_FORWARD -o pod-+ -j ACCEPT
ipt -t nat -N CILIUM_POST_nat
ipt -t nat -I POSTROUTING -j CILIUM_POST_nat
ipt -t nat -A CILIUM_POST_nat -s $HERE ! -d $PODS ! -o cilium_+ -j MASQUERADE
`},
	// Table 2 represents a second network interface, through which replies are lost in this test. The rules mark
	// only connections to addresses of the first interface, such as connections to node ports.
	{name: "AWS VPC CNI: a connection mark sends replies out of the interface on which the request arrived",
		families: []cluster.Family{cluster.V4},
		met:      "-A PREROUTING -i pod-+ -j CONNMARK --restore-mark --nfmask 0x80 --ctmask 0x80", rules: `
ipt -t mangle -I PREROUTING -i eth0 -m addrtype --dst-type LOCAL --limit-iface-in -j CONNMARK --set-xmark 0x80/0x80
ipt -t mangle -I PREROUTING -i pod-+ -j CONNMARK --restore-mark --nfmask 0x80 --ctmask 0x80
for chain in AWS-SNAT-CHAIN-0 AWS-CONNMARK-CHAIN-0; do ipt -t nat -N $chain; done
ipt -t nat -I POSTROUTING -j AWS-SNAT-CHAIN-0
ipt -t nat -A AWS-SNAT-CHAIN-0 -d $PODS -j RETURN
ipt -t nat -A AWS-SNAT-CHAIN-0 -d $NODE/24 -j RETURN
ipt -t nat -A AWS-SNAT-CHAIN-0 ! -o vlan+ -m addrtype ! --dst-type LOCAL -j SNAT --to-source $NODE --random-fully
ipt -t nat -I PREROUTING -i pod-+ -j AWS-CONNMARK-CHAIN-0
ipt -t nat -A AWS-CONNMARK-CHAIN-0 ! -d $PODS -j CONNMARK --set-xmark 0x80/0x80
ipt -t nat -A AWS-CONNMARK-CHAIN-0 -j CONNMARK --restore-mark --nfmask 0x80 --ctmask 0x80
ip rule add pref 512 to $HERE lookup main
ip rule add pref 1024 fwmark 0x80/0x80 lookup main
ip rule add pref 1536 from $WEB lookup 2
ip route add unreachable default table 2
`, undo: `
for pref in 512 1024 1536; do ip rule del pref $pref; done
ip route flush table 2
`, lost: func(w *world, p path) bool {
			return p.from == w.outside && p.server == w.near.Name && !strings.HasPrefix(p.to, w.node1.V4.String())
		}},
}

// calico resembles Felix's rules. Before IPVS chooses the endpoint, the rules only store the number of the input
// interface in the upper bits of the packet's mark. The mark 0x10000 means "accepted".
const calico = `
ipt -P FORWARD DROP
family=inet; test $V = 4 || family=inet6
ipset create cali${V}this-host hash:ip family $family
ipset create cali${V}all-pools hash:net family $family
ipset add cali${V}this-host $NODE
ipset add cali${V}all-pools $PODS
workloads=$(ip -o link | sed -n 's/^[0-9]*: \(pod-[^@:]*\).*/\1/p')

for chain in INPUT FORWARD OUTPUT forward-check set-endpoint-mark forward-endpoint-mark from-endpoint-mark wl-to-host \
	from-wl-dispatch to-wl-dispatch; do ipt -N cali-$chain; done
ipt -I INPUT -j cali-INPUT
ipt -I FORWARD -j cali-FORWARD
ipt -I OUTPUT -j cali-OUTPUT

ipt -A cali-INPUT -j cali-forward-check
ipt -A cali-INPUT -m mark ! --mark 0x0/0xfff00000 -j RETURN
ipt -A cali-INPUT -i pod-+ -g cali-wl-to-host
ipt -A cali-INPUT -m mark --mark 0x10000/0x10000 -j ACCEPT
ipt -A cali-INPUT -j MARK --set-xmark 0x0/0xf0000
ipt -A cali-wl-to-host -j cali-from-wl-dispatch
ipt -A cali-wl-to-host -j ACCEPT
ipt -A cali-forward-check -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN
for protocol in tcp udp; do
	ipt -A cali-forward-check -p $protocol -m set --match-set cali${V}this-host dst -m multiport --dports 30000:32767 \
		-g cali-set-endpoint-mark
done
ipt -A cali-forward-check -m set ! --match-set cali${V}this-host dst -j cali-set-endpoint-mark

ipt -A cali-OUTPUT -m mark --mark 0x10000/0x10000 -j ACCEPT
ipt -A cali-OUTPUT -m mark ! --mark 0x0/0xfff00000 -g cali-forward-endpoint-mark
ipt -A cali-OUTPUT -o pod-+ -j RETURN
ipt -A cali-forward-endpoint-mark -m mark ! --mark 0x100000/0xfff00000 -j cali-from-endpoint-mark
ipt -A cali-forward-endpoint-mark -o pod-+ -j cali-to-wl-dispatch
ipt -A cali-forward-endpoint-mark -j MARK --set-xmark 0x0/0xfff00000
ipt -A cali-forward-endpoint-mark -m mark --mark 0x10000/0x10000 -j ACCEPT

ipt -A cali-FORWARD -j MARK --set-xmark 0x0/0xe0000
ipt -A cali-FORWARD -i pod-+ -j cali-from-wl-dispatch
ipt -A cali-FORWARD -o pod-+ -j cali-to-wl-dispatch
ipt -A cali-FORWARD -m mark --mark 0x10000/0x10000 -j ACCEPT

number=257
for workload in $workloads; do
	mark=0x$(printf %x $number)00000/0xfff00000
	ipt -N cali-fw-$number
	ipt -N cali-tw-$number
	for chain in fw tw; do
		ipt -A cali-$chain-$number -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
		ipt -A cali-$chain-$number -m conntrack --ctstate INVALID -j DROP
		ipt -A cali-$chain-$number -j MARK --set-xmark 0x0/0x10000
		ipt -A cali-$chain-$number -j MARK --set-xmark 0x10000/0x10000
		ipt -A cali-$chain-$number -m mark --mark 0x10000/0x10000 -j RETURN
		ipt -A cali-$chain-$number -j DROP
	done
	ipt -A cali-from-wl-dispatch -i $workload -g cali-fw-$number
	ipt -A cali-to-wl-dispatch -o $workload -g cali-tw-$number
	ipt -A cali-from-endpoint-mark -m mark --mark $mark -g cali-fw-$number
	ipt -A cali-set-endpoint-mark -i $workload -j MARK --set-xmark $mark
	ipt -A cali-set-endpoint-mark -i $workload -j RETURN
	number=$((number+1))
done
ipt -A cali-set-endpoint-mark -i pod-+ -j DROP
ipt -A cali-set-endpoint-mark -j MARK --set-xmark 0x100000/0xfff00000
for chain in from-wl-dispatch to-wl-dispatch from-endpoint-mark; do ipt -A cali-$chain -j DROP; done

ipt -t raw -I PREROUTING -i pod-+ -j MARK --set-xmark 0x40000/0x40000
ipt -t raw -A PREROUTING -m mark --mark 0x40000/0x40000 -m rpfilter --validmark --invert -j DROP
ipt -t nat -N cali-nat-outgoing
ipt -t nat -I POSTROUTING -j cali-nat-outgoing
ipt -t nat -A cali-nat-outgoing -m set --match-set cali${V}all-pools src -m set ! --match-set cali${V}all-pools dst \
	-j MASQUERADE
`

// TestNetworks tests every path in docs/services.md with each network plugin's rules.
func TestNetworks(t *testing.T) {
	w := onWorld(t)
	t.Run("none, for comparison", func(t *testing.T) { w.mustPass(t, both...) })
	for _, n := range networks {
		t.Run(n.name, func(t *testing.T) {
			for _, node := range w.Nodes[:2] {
				if n.undo != "" {
					t.Cleanup(func() { w.undo(t, node, n) })
				}
				w.othersRules(t, node, n.rules, n.families...)
			}
			for _, f := range n.families {
				w.mustPassBut(t, f, n.lost)
			}
			for _, f := range n.families {
				mustHaveMatched(t, w.node1, f, n.met)
			}
		})
	}
}

func mustHaveMatched(t *testing.T, node *cluster.Node, f cluster.Family, rule string) {
	t.Helper()
	for _, line := range lines(node.MustRun(t, saveProgram(f), "-c")) {
		if strings.HasSuffix(line, rule) && !strings.HasPrefix(line, "[0:") {
			return
		}
	}
	t.Errorf("%s: no packet matched %s", f, rule)
}

func (w *world) undo(t *testing.T, node *cluster.Node, n network) {
	t.Helper()
	for _, f := range n.families {
		if _, err := w.tryShell(node, f, "", n.undo); err != nil {
			t.Errorf("undo: %v", err)
		}
	}
}
