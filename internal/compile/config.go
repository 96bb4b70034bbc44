package compile

import (
	"net/netip"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Config is what of the node and its configuration decides how Services become kernel state.
type Config struct {
	// Node is the name under which this node appears in EndpointSlices; empty when unknown.
	Node string
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
	// LocalFromNode takes the ranges of Local from this node's object.
	LocalFromNode bool
	// NodePorts says at which of the node's addresses node ports are served.
	NodePorts NodePortAddresses
	// ExternalIPs says which of the addresses in spec.externalIPs are served.
	ExternalIPs ExternalIPs
	// Excluded ranges are left to others: nothing in them is served or bound.
	Excluded []netip.Prefix
	// Network are addresses that this node's networks need, each with what it is: no Service can have them, not even as ClusterIP.
	Network map[netip.Addr]string
	// Reserved are further addresses outside this node that it cannot do without, each with what it is: bound here, they were lost.
	Reserved map[netip.Addr]string
	// Egress masquerades what pods send to the world outside the cluster.
	Egress Egress
	// AcceptServices lets the packets of Services through a host firewall that drops by default.
	AcceptServices bool
	// Beside says that another proxy serves other Services on this node.
	Beside bool
	// StrictARP keeps other interfaces from answering ARP requests for virtual addresses.
	StrictARP bool
	// Sysctls to set besides those that IPVS needs.
	Sysctls []kernel.SysctlSetting
	// Timeouts of IPVS connections; a zero one stays as it is.
	Timeouts kernel.Timeouts
}

// NodePortAddresses choose among the addresses of the node's interfaces. The zero value takes them all.
type NodePortAddresses struct {
	// Primary takes the first address of each family in the Node object instead.
	Primary bool
	// CIDRs take the addresses inside them. A family of which there is no range here takes all.
	CIDRs []netip.Prefix
}

// ExternalIPs restrict spec.externalIPs, with which whoever may write a Service takes traffic meant for any address. The zero
// value serves every one.
type ExternalIPs struct {
	Off bool
	// Allowed ranges; none means every address.
	Allowed []netip.Prefix
}

// Egress is the masquerading of pods' packets to the world outside. It needs the pods' ranges.
type Egress struct {
	Masquerade bool
	// Except are destinations that see the pod's own address.
	Except []netip.Prefix
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
