package compile

import (
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Config contains the facts about the node that are known when the agent starts. nodeContext adds the facts that the agent learns later.
type Config struct {
	Host
	Settings
}

// Host describes the machine. It is fixed until the agent restarts, even if the configuration is reloaded.
type Host struct {
	// NodeName is this node's name in EndpointSlices and Node objects. It is empty if unknown.
	NodeName string
	Families []inet.Family
	Mode     kernel.Mode
	// LocalPorts are the source ports that the kernel uses for this node's own connections.
	LocalPorts kernel.Ports
}

// Settings contains the settings from the configuration file and the flags. A reload replaces all of them.
type Settings struct {
	// Scheduler is the scheduler of Services that do not name one.
	Scheduler string
	// MasqueradeAll masquerades every connection to a ClusterIP.
	MasqueradeAll bool
	// MasqueradeBit is the bit of the packet mark that requests masquerading.
	MasqueradeBit uint8
	// Local distinguishes local clients from all others.
	Local LocalDetector
	// LocalByNodeCIDR uses spec.podCIDRs of this node's Node object as Local.CIDRs.
	LocalByNodeCIDR bool
	// NodePorts selects the node addresses at which node ports are served.
	NodePorts NodePortAddresses
	// ExternalIPs selects which addresses in spec.externalIPs are served.
	ExternalIPs ExternalIPs
	// Excluded ranges belong to other programs. No address in them is served or bound.
	Excluded []netip.Prefix
	// AgentPorts are the agent's own TCP ports.
	AgentPorts []uint16
	// Egress masquerades pods' packets that leave the cluster.
	Egress Egress
	// AcceptServices accepts Service traffic even if the host firewall drops packets by default.
	AcceptServices bool
	// SideBySide is true if another proxy serves other Services on this node.
	SideBySide bool
	// Binding is how IPv4 virtual addresses become local.
	Binding kernel.Binding
	// StrictARP keeps other interfaces from answering ARP requests for virtual addresses.
	StrictARP bool
	// StopCounters stops IPVS's counters of packets and bytes.
	StopCounters bool
	// Sysctls are set in addition to the ones that IPVS needs.
	Sysctls []kernel.SysctlSetting
	// Timeouts are the timeouts of IPVS connections. Zero keeps the kernel's value.
	Timeouts kernel.Timeouts
}

// NodePortAddresses selects addresses of the node's interfaces, and loopback addresses. The zero value selects all
// addresses of the interfaces. Otherwise, an address needs only one reason to be selected.
type NodePortAddresses struct {
	// All selects every address of the interfaces.
	All bool
	// Primary selects the first address of each family in the Node object.
	Primary bool
	// Localhost selects 127.0.0.1 and ::1.
	Localhost bool
	// CIDRs select the addresses inside the ranges.
	CIDRs []netip.Prefix
}

// unrestricted reports whether all addresses of a family are selected. Ranges of one family do not restrict the other.
func (n NodePortAddresses) unrestricted(f inet.Family) bool {
	return n.All || !n.Primary && !n.Localhost && !slices.ContainsFunc(n.CIDRs, func(c netip.Prefix) bool { return inet.FamilyOf(c.Addr()) == f })
}

// loopback returns the loopback addresses that are selected. A range must contain only loopback addresses, so
// 0.0.0.0/0 selects none.
func (n NodePortAddresses) loopback() (selected []netip.Addr) {
	for _, f := range inet.Families {
		a := f.Loopback()
		if n.Localhost || slices.ContainsFunc(n.CIDRs, func(c netip.Prefix) bool { return c.Addr().IsLoopback() && c.Contains(a) }) {
			selected = append(selected, a)
		}
	}
	return selected
}

// ExternalIPs restricts spec.externalIPs, because anyone who can write a Service can use the field to take over traffic to any address. The
// zero value allows all of them.
type ExternalIPs struct {
	Off bool
	// ByVersion turns external IPs off if the API server's version is externalIPsEnd or newer.
	ByVersion bool
	// Allowed contains the allowed ranges. If it is empty, every address is allowed.
	Allowed []netip.Prefix
	// AtNode selects the ports that are served at the node's own addresses.
	AtNode AtNode
}

// AtNode selects the ports of external IPs that are addresses of the node.
type AtNode uint8

// These are the selections. AtNodeGuarded refuses the ports that the node needs, and ports on which a process listens
// when the Service is created.
const (
	AtNodeGuarded AtNode = iota
	AtNodeAll
	AtNodeNone
)

func (e ExternalIPs) allow(a netip.Addr) bool { return len(e.Allowed) == 0 || within(e.Allowed, a) }

// Egress configures the masquerading of pods' packets that leave the cluster. It needs LocalDetector.CIDRs.
type Egress struct {
	Masquerade bool
	// Except lists destinations to which pods' packets are not masqueraded.
	Except []netip.Prefix
}

// LocalDetector distinguishes local clients, which keep their source address, from all others, which are masqueraded. At most one of its fields is
// set. If none is set, only processes of the node itself are masqueraded.
type LocalDetector struct {
	// CIDRs are the pod ranges of the whole cluster or of this node.
	CIDRs []netip.Prefix
	// Bridge is the interface on which pods' packets arrive.
	Bridge string
	// InterfacePrefix is the prefix of the names of the interfaces on which pods' packets arrive.
	InterfacePrefix string
}

// local returns conditions for a family. A client is local if it meets any of them. The list is empty if the detector does not cover the
// family.
func (d LocalDetector) local(f inet.Family) []kernel.Condition {
	switch {
	case d.Bridge != "":
		return []kernel.Condition{kernel.Arrives{Interface: d.Bridge}}
	case d.InterfacePrefix != "":
		return []kernel.Condition{kernel.Arrives{Interface: d.InterfacePrefix, Prefix: true}}
	}
	var matches []kernel.Condition
	for _, cidr := range d.CIDRs {
		if inet.FamilyOf(cidr.Addr()) == f {
			matches = append(matches, kernel.From{Prefix: cidr.Masked()})
		}
	}
	return matches
}

func within(ranges []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(a) })
}
