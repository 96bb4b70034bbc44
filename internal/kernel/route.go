package kernel

// MarkRule is a routing rule for packets with a mark.
type MarkRule struct{ Mark, Mask uint32 }

// Route is the kernel's answer to a route lookup.
type Route struct {
	Interface string
	// Local is true if the kernel delivers the packets on this node.
	Local bool
	// Failure is the reason why the kernel drops the packets; empty if it does not.
	Failure string
}
