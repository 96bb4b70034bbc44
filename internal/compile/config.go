package compile

import (
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
)

// Config is what of the node and its configuration decides how Services become kernel state.
type Config struct {
	// Node is the name under which this node appears in EndpointSlices; empty when unknown.
	Node string
	// NodeAddresses are this node's own. Served as a virtual address, one would close the node's ports on it.
	NodeAddresses []netip.Addr
	// Families that this node can serve.
	Families []inet.Family
	// Scheduler of every virtual server.
	Scheduler string
	// MasqueradeAll hides the client's address behind the node's for every connection to a ClusterIP.
	MasqueradeAll bool
	// MasqueradeBit is the bit of the packet mark that asks for masquerading.
	MasqueradeBit uint8
	// RandomFully says whether this iptables can pick masqueraded ports at random.
	RandomFully bool
	// Local tells pods of this node or cluster from everybody else.
	Local LocalDetector
}

// reasonToRefuse says why an address cannot be a virtual address on this node; it is empty for a good one.
func (cfg Config) reasonToRefuse(a netip.Addr) string {
	if slices.Contains(cfg.NodeAddresses, a) {
		return "is an address of this node, whose own ports would be closed on it"
	}
	return reasonToRefuse(a)
}

// LocalDetector tells local clients, which keep their source address, from others, which are masqueraded. At most one of its
// fields is used; with none, only processes of the node itself are masqueraded.
type LocalDetector struct {
	// CIDRs of pods: the whole cluster's or this node's.
	CIDRs []netip.Prefix
	// Bridge is the interface that the pods' packets arrive on.
	Bridge string
	// InterfacePrefix starts the names of the interfaces that the pods' packets arrive on.
	InterfacePrefix string
}

// local returns the iptables matches for local clients of a family. None means that the detector knows nothing of the family.
func (d LocalDetector) local(f inet.Family) [][]string {
	switch {
	case d.Bridge != "":
		return [][]string{{"-i", d.Bridge}}
	case d.InterfacePrefix != "":
		return [][]string{{"-i", d.InterfacePrefix + "+"}}
	}
	var matches [][]string
	for _, cidr := range d.CIDRs {
		if inet.FamilyOf(cidr.Addr()) == f {
			matches = append(matches, []string{"-s", cidr.Masked().String()})
		}
	}
	return matches
}
