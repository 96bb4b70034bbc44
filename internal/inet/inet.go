// Package inet contains the types shared by cluster packages (model, watch) and kernel packages: address family,
// transport protocol, and the check for addresses that no Service or endpoint can have.
//
// May import: the standard library.
package inet

import (
	"fmt"
	"net/netip"
)

// Family is an IP address family.
type Family uint8

// The families a Service can have.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// Families lists both families, in the order used in all output.
var Families = []Family{IPv4, IPv6}

// FamilyOf returns the family of a valid address. An IPv4-mapped IPv6 address counts as IPv6; callers Unmap all
// input addresses.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

func (f Family) String() string {
	switch f {
	case IPv4:
		return "IPv4"
	case IPv6:
		return "IPv6"
	}
	return fmt.Sprintf("family(%d)", uint8(f))
}

// Loopback returns 127.0.0.1 or ::1.
func (f Family) Loopback() netip.Addr {
	if f == IPv6 {
		return netip.IPv6Loopback()
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// Bits returns the length of the family's addresses.
func (f Family) Bits() int {
	if f == IPv4 {
		return 32
	}
	return 128
}

// Protocol is a transport protocol; its value is the IP protocol number.
type Protocol uint8

// The protocols a Service port can have.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// String returns the protocol's name as ipset prints it.
func (p Protocol) String() string {
	switch p {
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	case SCTP:
		return "sctp"
	}
	return fmt.Sprintf("%d", uint8(p))
}

// ParseProtocol parses the name that Kubernetes uses (upper case) or ipset uses (lower case).
func ParseProtocol(s string) (Protocol, error) {
	switch s {
	case "TCP", "tcp":
		return TCP, nil
	case "UDP", "udp":
		return UDP, nil
	case "SCTP", "sctp":
		return SCTP, nil
	}
	return 0, fmt.Errorf("protocol %q: must be TCP, UDP or SCTP", s)
}
