package kernel

import "net/netip"

// Flow is a tracked connection: its client, its original destination, and the endpoint that replies.
type Flow struct {
	// Key is the address and port to which the client sends.
	Key    ServerKey
	Client netip.AddrPort
	// Endpoint is the source of the replies: the destination that IPVS chose, or the address of Key if IPVS was not involved.
	Endpoint netip.AddrPort
	// Unanswered is true for a TCP connection from which the kernel has only seen the client's first packet.
	Unanswered bool
}
