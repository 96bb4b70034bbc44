package kernel

import (
	"net/netip"
	"time"
)

// Flow is a tracked connection: its client, its original destination, and the endpoint that replies.
type Flow struct {
	// Key is the address and port to which the client sends.
	Key    ServerKey
	Client netip.AddrPort
	// Endpoint is the source of the replies: the destination that IPVS chose, or the address of Key if IPVS was not involved.
	Endpoint netip.AddrPort
	// Unanswered is true if the kernel has only seen the client's first packet of a TCP connection.
	Unanswered bool
	// OneWay is true if the kernel has only seen packets of the client, of any protocol.
	OneWay bool
	// Masqueraded is true if the endpoint sees another address or port than the client's.
	Masqueraded bool
}

// FlowEvent is the beginning or the end of a tracked connection.
type FlowEvent struct {
	Flow
	At       time.Time
	Ended    bool
	Answered bool
	// Counted is true if the kernel counts packets and bytes (sysctl nf_conntrack_acct). Packets counts both directions. BytesIn counts
	// the bytes from the client.
	Counted                    bool
	Packets, BytesIn, BytesOut uint64
	// Lasted is how long the connection existed; zero if the kernel does not record it (sysctl nf_conntrack_timestamp).
	Lasted time.Duration
}
