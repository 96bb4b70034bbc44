package kernel

import (
	"net/netip"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
)

// TestOperationsInModes: no operation is described as a command that would do something else.
func TestOperationsInModes(t *testing.T) {
	at := ServerKey{Addr: netip.MustParseAddrPort("10.96.0.10:80"), Protocol: inet.TCP}
	endpoint := ServerDestination{Server: at, Destination: Destination{Addr: netip.MustParseAddrPort("10.244.1.5:8080"), Weight: 2}}
	member := Member{Set: "NO-LOCAL", Element: Element{Addr: at.Addr.Addr(), Protocol: inet.TCP, Port: 80}}
	for _, c := range []struct {
		mode Mode
		op   Op
		want string
	}{
		{Userspace, Op{Create, DummyDevice{}}, "add kube-ipvs0, which leads to the agent's process"},
		{Userspace, Op{Create, BoundAddress{Addr: at.Addr.Addr()}}, "add route 10.96.0.10 dev kube-ipvs0 proto 117"},
		{Userspace, Op{Delete, Server{Key: at}}, "remove port 10.96.0.10:80/tcp from the agent's process"},
		{Userspace, Op{Update, endpoint}, "change endpoint 10.244.1.5:8080 of port 10.96.0.10:80/tcp in the agent's process, weight 2"},
		{Userspace, Op{Delete, endpoint}, "remove endpoint 10.244.1.5:8080 from port 10.96.0.10:80/tcp in the agent's process"},
		{Userspace, Op{Create, Set{Name: "NO-LOCAL"}}, "add set NO-LOCAL to the agent's process"},
		{Userspace, Op{Create, member}, "add 10.96.0.10,tcp:80 to set NO-LOCAL in the agent's process"},
		{Userspace, Op{Ensure, SysctlSetting{Name: "net/ipv4/ip_forward", Value: "1"}}, "sysctl -w net/ipv4/ip_forward=1"},
		{NFTablesOnly, Op{Create, DummyDevice{}}, "ip link add kube-ipvs0 type dummy"},
		{NFTablesOnly, Op{Create, endpoint}, "add endpoint 10.244.1.5:8080 to port 10.96.0.10:80/tcp in nftables, weight 2"},
		{NFTablesOnly, Op{Delete, member}, "remove 10.96.0.10,tcp:80 from set NO-LOCAL in nftables"},
		{NFTablesOnly, Op{Ensure, Ruleset{Family: inet.IPv6}}, "set the IPv6 rules in nftables"},
		{IPVSWithNFTables, Op{Delete, endpoint}, "ipvsadm -d -t 10.96.0.10:80 -r 10.244.1.5:8080"},
		{IPVSWithNFTables, Op{Delete, Set{Name: "NO-LOCAL"}}, "remove set NO-LOCAL from nftables"},
		{IPVSWithIPTables, Op{Delete, Set{Name: "NO-LOCAL"}}, "ipset destroy NO-LOCAL"},
	} {
		if got := c.op.In(c.mode); got != c.want {
			t.Errorf("%s with %s: %q, want %q", c.op, c.mode, got, c.want)
		}
	}
	for mode, where := range elsewhere {
		for _, object := range []Object{Server{Key: at}, endpoint, Set{}, member, Ruleset{}} {
			for verb := range commands[object.kind()] {
				op := Op{verb, object}
				byIPVS := where.servers == "" && (object.kind() == KindServer || object.kind() == KindDestination)
				if command := op.In(mode) == op.String(); command != byIPVS {
					t.Errorf("%s: %s", mode, op.In(mode))
				}
			}
		}
	}
}
