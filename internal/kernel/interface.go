package kernel

import (
	"net/netip"
	"time"
)

// Interface is a network interface of the node.
type Interface struct {
	Name  string
	Index int
	// Kind is the type that `ip -d link` shows, such as veth, bond, vlan or vxlan. It is device for hardware.
	Kind string
	MTU  int
	Up   bool
	// Master is the bridge or bond that the interface belongs to, and Parent is the underlying interface, for example of a VLAN. Each is empty
	// if there is none.
	Master, Parent string
	// Container is true if the interface's peer is in another network namespace.
	Container bool
	// Addressed is true if the interface has an address that is not link-local.
	Addressed bool
	// PerPacket is true for a tunnel whose remote end is chosen per packet (Cilium, Open vSwitch). The MTU of routes
	// limits the tunnel's packets; the MTU of the interface does not.
	PerPacket bool
	// XDP is true if an eBPF program handles the interface's packets before the kernel does.
	XDP bool
	// MAC is the hardware address; empty if there is none.
	MAC string
	// Ethernet is true if the interface finds neighbors by their MAC addresses, unless NoARP is true.
	Ethernet, NoARP bool
	// NoCarrier is true if the interface is up, but its cable or its peer is not.
	NoCarrier bool
	// Networks are the addresses of the interface, with the lengths of their prefixes.
	Networks []netip.Prefix
}

// Neighbor is an entry of the kernel's table of ARP and IPv6 neighbors.
type Neighbor struct {
	Addr netip.Addr
	// Interface is the index of the interface.
	Interface int
	// MAC is empty if the neighbor has not answered.
	MAC string
	// State is the state as `ip neigh` shows it, such as REACHABLE or FAILED.
	State string
	// Learned is true if a program keeps the entry up to date.
	Learned bool
}

// Queue is a queueing discipline (qdisc) of an interface.
type Queue struct {
	// Interface is the index of the interface.
	Interface int
	// Kind is the type that `tc qdisc` shows, such as fq_codel or netem.
	Kind string
	// Full is true if the limit is 0, so that no packet fits.
	Full bool
	// Loss in percent and Delay are settings of netem.
	Loss  float64
	Delay time.Duration
	Drops uint64
}
