package kernel

import (
	"cmp"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
)

// ServerKey identifies a virtual server by the address, port and protocol of matching packets.
type ServerKey struct {
	Addr     netip.AddrPort
	Protocol inet.Protocol
}

// Family returns the address family of the virtual server.
func (k ServerKey) Family() inet.Family { return inet.FamilyOf(k.Addr.Addr()) }

// AllPorts returns the key of the virtual server for packets to the address that match no other virtual server. Its port is 0.
func (k ServerKey) AllPorts() ServerKey {
	return k.WithPort(0)
}

// WithPort returns the key of another port at the same address.
func (k ServerKey) WithPort(port uint16) ServerKey {
	return ServerKey{Addr: netip.AddrPortFrom(k.Addr.Addr(), port), Protocol: k.Protocol}
}

// ClientsMap returns the name of the nftables map that records which endpoint each client of a virtual server with affinity uses.
func ClientsMap(k ServerKey) string {
	return fmt.Sprintf("clients%d.%s.%s.%d", k.Family(), strings.ReplaceAll(k.Addr.Addr().String(), ":", "-"), k.Protocol, k.Addr.Port())
}

// String prints the key as ipvsadm's save format does, so that it can be pasted after `ipvsadm -L`.
func (k ServerKey) String() string { return protocolOption(k.Protocol) + " " + k.Addr.String() }

// Compare orders keys by family, address, port and protocol.
func (k ServerKey) Compare(o ServerKey) int {
	return cmp.Or(
		cmp.Compare(k.Family(), o.Family()),
		k.Addr.Compare(o.Addr),
		cmp.Compare(k.Protocol, o.Protocol),
	)
}

func protocolOption(p inet.Protocol) string {
	switch p {
	case inet.TCP:
		return "-t"
	case inet.UDP:
		return "-u"
	}
	return "--sctp-service"
}

// Flags of a virtual server, as the kernel numbers them.
const (
	FlagPersistent uint32 = 0x1
	FlagOnePacket  uint32 = 0x4
	FlagSched1     uint32 = 0x8  // sh-fallback, mh-fallback
	FlagSched2     uint32 = 0x10 // sh-port, mh-port
	FlagSched3     uint32 = 0x20

	// FlagsConfigurable contains the flags that a user can set. The kernel also reports other flags.
	FlagsConfigurable = FlagPersistent | FlagOnePacket | FlagSched1 | FlagSched2 | FlagSched3
)

// Flags of a virtual server that only the data plane in user space has. Connections to endpoints begin with a header of the PROXY protocol.
const (
	FlagProxyV1 uint32 = 0x1000_0000 // in text
	FlagProxyV2 uint32 = 0x2000_0000 // in binary
)

// Server is a virtual server's configuration without its destinations.
type Server struct {
	Key       ServerKey
	Scheduler string
	Flags     uint32
	// Timeout is in seconds; 0 if the server is not persistent.
	Timeout uint32
	// MaskBits is the prefix length that groups the clients of a persistent server. It is the full length of the address unless configured
	// otherwise: the kernel rejects an IPv6 server with length 0 and silently accepts an IPv4 one.
	MaskBits uint8
}

// String prints the arguments of `ipvsadm -A`.
func (s Server) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s -s %s", s.Key, s.Scheduler)
	if s.Flags&FlagPersistent != 0 {
		fmt.Fprintf(&b, " -p %d", s.Timeout)
		if int(s.MaskBits) != s.Key.Family().Bits() {
			b.WriteString(" -M " + s.mask())
		}
	}
	if s.Flags&FlagOnePacket != 0 {
		b.WriteString(" -o")
	}
	if f := s.schedulerFlags(); f != "" {
		b.WriteString(" -b " + f)
	}
	return b.String()
}

func (s Server) mask() string {
	if s.Key.Family() == inet.IPv6 {
		return strconv.Itoa(int(s.MaskBits))
	}
	m := ^uint32(0) << (32 - s.MaskBits)
	return netip.AddrFrom4([4]byte{byte(m >> 24), byte(m >> 16), byte(m >> 8), byte(m)}).String()
}

func (s Server) schedulerFlags() string {
	names := [3]string{"flag-1", "flag-2", "flag-3"}
	if s.Scheduler == "sh" || s.Scheduler == "mh" {
		names[0], names[1] = s.Scheduler+"-fallback", s.Scheduler+"-port"
	}
	var set []string
	for i, flag := range [3]uint32{FlagSched1, FlagSched2, FlagSched3} {
		if s.Flags&flag != 0 {
			set = append(set, names[i])
		}
	}
	return strings.Join(set, ",")
}

// Destination is a real server behind a virtual server; IPVS reaches it by masquerading (NAT).
type Destination struct {
	Addr   netip.AddrPort
	Weight uint32
	// Upper is the number of connections at which the destination stops receiving new ones; Lower is the number below which it receives
	// them again. 0 means no limit for Upper, and three quarters of Upper for Lower.
	Upper, Lower uint32
}

// Resumes returns the number of connections below which a destination that has reached its limit gets new connections again.
func (d Destination) Resumes() uint32 {
	if d.Lower > 0 {
		return d.Lower
	}
	return uint32((uint64(d.Upper)*3 + 3) / 4)
}

// Compare orders destinations by address.
func (d Destination) Compare(o Destination) int { return d.Addr.Compare(o.Addr) }

// String prints the destination's arguments of `ipvsadm -a`.
func (d Destination) String() string {
	s := fmt.Sprintf("-r %s -m -w %d", d.Addr, d.Weight)
	if d.Upper > 0 {
		s += fmt.Sprintf(" -x %d", d.Upper)
	}
	if d.Lower > 0 {
		s += fmt.Sprintf(" -y %d", d.Lower)
	}
	return s
}

// Forwarding is the method by which packets reach a destination. The agent's destinations are always masqueraded.
type Forwarding uint8

// Forwarding methods as the kernel numbers them.
const (
	ForwardMasq   Forwarding = 0
	ForwardLocal  Forwarding = 1
	ForwardTunnel Forwarding = 2
	ForwardRoute  Forwarding = 3
)

// ObservedDestination is a destination as read from the kernel: its configuration and its connection counts.
type ObservedDestination struct {
	Destination
	Forwarding Forwarding
	Stats      DestinationStats
}

// TakesConnections reports whether the scheduler may select the destination.
func (d ObservedDestination) TakesConnections() bool { return d.Weight > 0 }

// DestinationStats counts a destination's connections.
type DestinationStats struct {
	Active     uint32
	Inactive   uint32
	Persistent uint32 // persistence templates; only some reads return them
}

// Connections returns the number of connections that would break if the destination were deleted.
func (s DestinationStats) Connections() uint32 { return s.Active + s.Inactive }
