package doctor

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// maxProbed limits the addresses of this node for which doctor sends ARP requests.
const maxProbed = 4

// Probed is an address of this node, with the MAC addresses of the machines that claimed it in response to doctor's ARP requests.
type Probed struct {
	Address   netip.Addr
	Interface kernel.Interface
	MACs      []string
}

// ToProbe selects the first IPv4 address of each interface that leads to other machines. It skips /32 and link-local addresses. Programs such as
// keepalived may move an interface's other addresses between machines. The kernel itself detects duplicate IPv6 addresses.
func (f *Facts) ToProbe() (all []Probed) {
	for _, name := range f.routed() {
		i, exists := f.named(name)
		if !exists || !i.Ethernet || i.NoARP || i.NoCarrier || !i.Up || isTunnel(i) || f.isDummy(i) {
			continue
		}
		at := slices.IndexFunc(i.Networks, func(n netip.Prefix) bool { return n.Addr().Is4() && !n.IsSingleIP() && !n.Addr().IsLinkLocalUnicast() })
		if at >= 0 && len(all) < maxProbed {
			all = append(all, Probed{Address: i.Networks[at].Addr(), Interface: i})
		}
	}
	return all
}

// checkDuplicates finds addresses that both this node and another machine have. It ignores this node's own MAC addresses, because the node may
// answer its ARP requests through a second interface in the same network.
func checkDuplicates(f Facts) []finding.Finding {
	var evidence []string
	for _, p := range f.Probed {
		for _, mac := range p.MACs {
			if !slices.ContainsFunc(f.Interfaces, func(i kernel.Interface) bool { return i.MAC == mac }) {
				evidence = append(evidence, fmt.Sprintf("%s on %s, which has the MAC address %s: a machine with the MAC address %s answers ARP requests for it, too",
					p.Address, p.Interface.Name, p.Interface.MAC, mac))
			}
		}
	}
	if len(evidence) == 0 {
		return nil
	}
	return finding.One(finding.Warning, "duplicate addresses", "another machine has an address of this node; part of the packets to this node, such as replies, arrive there instead",
		examples(evidence), "find the machine with this MAC address (in the switch's table of MAC addresses, the hypervisor or the DHCP server's leases), and change the "+
			"address of one of the two. If it is a router that answers for every address (local proxy ARP), there is nothing to do")
}
