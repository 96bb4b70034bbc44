package iphelper

import (
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// adapter is a network interface in use.
type adapter struct {
	loopback              bool
	addresses             []netip.Prefix
	gateways, nameservers []netip.Addr
}

// nodeOf returns the addresses of the adapters at which other hosts reach the machine, and what its networks need. It ignores the
// addresses of the loopback interface: the agent or an administrator has added them for Services.
func nodeOf(adapters []adapter) *kernel.Node {
	node := &kernel.Node{Network: kernel.Network{}}
	for _, one := range adapters {
		if one.loopback {
			continue
		}
		for _, p := range one.addresses {
			if a := p.Addr(); a.IsGlobalUnicast() {
				node.Addresses = append(node.Addresses, a)
				node.Network.AddSubnet(p)
			}
		}
		for _, a := range one.nameservers {
			node.Network[a] = kernel.NetworkRole{Kind: kernel.Nameserver}
		}
		for _, a := range one.gateways {
			if !a.IsLinkLocalUnicast() {
				node.Network[a] = kernel.NetworkRole{Kind: kernel.Gateway}
			}
		}
	}
	slices.SortFunc(node.Addresses, netip.Addr.Compare)
	return node
}
