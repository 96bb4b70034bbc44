package kernel

import "net/netip"

// MarkRule is a routing rule for packets with a mark.
type MarkRule struct{ Mark, Mask uint32 }

// Route is the kernel's answer to a route lookup.
type Route struct {
	Interface string
	// Gateway is the next hop; the zero address if the destination itself is the next hop.
	Gateway netip.Addr
	// Source is the address from which this node sends; the zero address if the lookup did not return one.
	Source netip.Addr
	// Local is true if the kernel delivers the packets on this node.
	Local bool
	// Failure is the reason why the kernel drops the packets; empty if it does not.
	Failure string
}
