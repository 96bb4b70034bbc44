package kernel

import "net/netip"

// Flow is a tracked connection: its client, its destination, and the endpoint that answers.
type Flow struct {
	// Key is where the client sent its packets.
	Key    ServerKey
	Client netip.AddrPort
	// Endpoint is where the answers come from: the destination that IPVS chose, or the address of Key where IPVS had no part.
	Endpoint netip.AddrPort
}
