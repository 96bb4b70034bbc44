package iphelper

import (
	"net/netip"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// TestNode: addresses on the loopback interface, and link-local ones, are not the node's. Gateways and nameservers are in no Service.
func TestNode(t *testing.T) {
	prefix, addr := netip.MustParsePrefix, netip.MustParseAddr
	node := nodeOf([]adapter{
		{loopback: true, addresses: []netip.Prefix{prefix("127.0.0.1/8"), prefix("10.96.0.10/32"), prefix("::1/128")}},
		{
			addresses:   []netip.Prefix{prefix("192.168.1.5/24"), prefix("fe80::5/64"), prefix("fd00::5/64")},
			gateways:    []netip.Addr{addr("192.168.1.1"), addr("fe80::1")},
			nameservers: []netip.Addr{addr("192.168.1.1"), addr("9.9.9.9")},
		},
	})
	lan, ula := prefix("192.168.1.0/24"), prefix("fd00::/64")
	want := &kernel.Node{
		Addresses: []netip.Addr{addr("192.168.1.5"), addr("fd00::5")},
		Network: kernel.Network{
			addr("192.168.1.0"): {Kind: kernel.SubnetAddress, Subnet: lan}, addr("192.168.1.255"): {Kind: kernel.Broadcast, Subnet: lan},
			addr("fd00::"): {Kind: kernel.SubnetAddress, Subnet: ula}, addr("192.168.1.1"): {Kind: kernel.Gateway}, addr("9.9.9.9"): {Kind: kernel.Nameserver},
		},
	}
	if !node.Equal(want) {
		t.Errorf("%+v, want %+v", node, want)
	}
}
