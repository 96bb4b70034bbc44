package kernel

// Interface is a network interface of the node.
type Interface struct {
	Name  string
	Index int
	// Kind is the kind that `ip -d link` shows, such as veth, bond, vlan or vxlan; device for hardware.
	Kind string
	MTU  int
	Up   bool
	// Master is the bridge or bond that the interface belongs to, and Parent is the underlying interface, as for a VLAN. Both are empty if
	// there is none.
	Master, Parent string
	// Container is true if the other end of the interface is in another network namespace.
	Container bool
	// Addressed is true if the interface has an address that is not link-local.
	Addressed bool
	// PerPacket is true for a tunnel whose remote end is chosen per packet (Cilium, Open vSwitch). The MTU of routes
	// limits the tunnel's packets; the MTU of the interface does not.
	PerPacket bool
	// XDP is true if an eBPF program sees the interface's packets before the kernel.
	XDP bool
}
