package kernel

import "net/netip"

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
	// Networks are the addresses of the interface, with the lengths of their prefixes.
	Networks []netip.Prefix
}
