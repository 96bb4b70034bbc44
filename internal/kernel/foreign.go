package kernel

import (
	"fmt"
	"net/netip"
	"strings"
)

// This file contains conditions and verdicts that occur only in other programs' rules.

// Negated matches packets that a condition does not match.
type Negated struct{ Condition }

// Leaves matches packets by their output interface, as Arrives does by their input interface.
type Leaves struct {
	Interface string
	Prefix    bool
}

// FromThisNode matches packets from the node's own addresses.
type FromThisNode struct{}

// ToPorts matches packets by their destination port.
type ToPorts struct{ Ports }

// States matches packets by the state of their connection, named as in iptables.
type States []string

// MarkIs matches packets whose mark, ANDed with Mask, equals Bits.
type MarkIs struct{ Bits, Mask uint32 }

// FromPorts matches packets by their source port.
type FromPorts struct{ Ports }

// EitherPorts matches packets whose source or destination port is listed.
type EitherPorts struct{ Ports }

// AddrType matches packets by the type of their destination or source: UNICAST, LOCAL, BROADCAST or another. With OfInterface, only the
// addresses of the packet's interface count.
type AddrType struct {
	Source, OfInterface bool
	Types               []string
}

// AddrRange matches packets by their destination or source.
type AddrRange struct {
	Source      bool
	First, Last netip.Addr
}

// OriginalTo matches packets by the original destination address of their connection.
type OriginalTo struct{ netip.Prefix }

// OriginalToPorts matches packets by the original destination port of their connection.
type OriginalToPorts struct{ Ports }

// Replies matches packets to the client of their connection.
type Replies struct{}

// TCPFlags matches TCP segments in which exactly the flags in Set are set, out of the flags in Mask.
type TCPFlags struct{ Mask, Set uint8 }

// ConnectionMarkIs matches packets by the mark of their connection, as MarkIs does by their own.
type ConnectionMarkIs struct{ Bits, Mask uint32 }

// ReversePath matches packets that arrive on the interface of the route to their source.
type ReversePath struct{}

// OfSocket matches packets by the local process that sends them. The value is the condition in iptables' syntax.
type OfSocket string

// NotOurs matches no packet to a Service or an endpoint. The value is the condition in iptables' syntax.
type NotOurs string

// Length matches packets by their length with all headers, from First to Last bytes.
type Length struct{ First, Last uint32 }

// Unknown is any other condition, in iptables' syntax.
type Unknown string

func (m Negated) condition() []string    { return []string{"!", ConditionText(m.Condition)} }
func (m Leaves) condition() []string     { return []string{"-o", interfaces(m.Interface, m.Prefix)} }
func (FromThisNode) condition() []string { return []string{"-m", "addrtype", "--src-type", "LOCAL"} }
func (m States) condition() []string     { return []string{"--ctstate", strings.Join(m, ",")} }
func (m MarkIs) condition() []string {
	return []string{"--mark", bitsText(m.Bits) + "/" + bitsText(m.Mask)}
}
func (m Unknown) condition() []string { return []string{string(m)} }

func (m ToPorts) condition() []string         { return []string{"--dports", m.list()} }
func (m FromPorts) condition() []string       { return []string{"--sports", m.list()} }
func (m EitherPorts) condition() []string     { return []string{"--ports", m.list()} }
func (m OriginalTo) condition() []string      { return []string{"--ctorigdst", m.String()} }
func (m OriginalToPorts) condition() []string { return []string{"--ctorigdstport", m.list()} }
func (Replies) condition() []string           { return []string{"--ctdir", "REPLY"} }
func (ReversePath) condition() []string       { return []string{"-m", "rpfilter"} }
func (m OfSocket) condition() []string        { return []string{string(m)} }
func (m NotOurs) condition() []string         { return []string{string(m)} }
func (m Length) condition() []string {
	return []string{"--length", fmt.Sprintf("%d:%d", m.First, m.Last)}
}

func (m AddrType) condition() []string {
	return []string{side(m.Source, "--src-type", "--dst-type"), strings.Join(m.Types, ",")}
}

func (m AddrRange) condition() []string {
	return []string{side(m.Source, "--src-range", "--dst-range"), m.First.String() + "-" + m.Last.String()}
}

func (m TCPFlags) condition() []string {
	return []string{"--tcp-flags", bitsText(uint32(m.Mask)), bitsText(uint32(m.Set))}
}

func (m ConnectionMarkIs) condition() []string {
	return []string{"-m", "connmark", "--mark", bitsText(m.Bits) + "/" + bitsText(m.Mask)}
}

func side(source bool, ofSource, ofDestination string) string {
	if source {
		return ofSource
	}
	return ofDestination
}

func (p Ports) list() string {
	ranges := make([]string, len(p))
	for i, r := range p {
		ranges[i] = fmt.Sprintf("%d:%d", r.First, r.Last)
	}
	return strings.Join(ranges, ",")
}

// ConditionText returns a condition in iptables' syntax, without the name of its extension.
func ConditionText(c Condition) string {
	words := c.condition()
	if words[0] == "-m" {
		words = words[2:]
	}
	return strings.Join(words, " ")
}

// ChangeMark clears the bits of the mask in the packet's mark, then inverts the bits of Invert.
type ChangeMark struct{ Invert, Mask uint32 }

// RestoreMark copies these bits from the connection's mark to the packet's. SaveMark does the opposite.
type RestoreMark struct{ ConnectionMask, Mask uint32 }

// SaveMark copies these bits from the packet's mark to the connection's.
type SaveMark struct{ Mask, ConnectionMask uint32 }

// ChangeConnectionMark changes the connection's mark as ChangeMark changes the packet's.
type ChangeConnectionMark struct{ Invert, Mask uint32 }

// GoTo continues in another chain of the table. A packet without a verdict there returns to the chain that called this one.
type GoTo string

// Ignored is a target that neither stops a packet nor affects its path, such as LOG.
type Ignored string

// The smallest values that a rule can write to a packet without an effect on its path: hops to the endpoint, and bytes in a segment.
const (
	EnoughHops  = 30
	EnoughBytes = 500
)

// OtherTarget is a target with any other effect.
type OtherTarget string

// Redirect changes the destination of the connection.
type Redirect struct{}

// NoTrack disables connection tracking for the packet.
type NoTrack struct{}

// SetZone puts the connection into a zone of connection tracking. A packet in another zone belongs to another connection. Original and Reply
// are the directions for which the zone applies.
type SetZone struct {
	Zone            uint16
	Original, Reply bool
}

// SourceNAT gives the connection a source address between First and Last, or an address of the node if they are not set, and one of the ports.
// Without Ports, all ports can be used.
type SourceNAT struct {
	First, Last netip.Addr
	Ports       Ports
}

func (v ChangeMark) verdict() []string {
	return []string{"-j", "MARK", "--set-xmark", bitsText(v.Invert) + "/" + bitsText(v.Mask)}
}
func (v RestoreMark) verdict() []string {
	return []string{"-j", "CONNMARK", "--restore-mark", "--nfmask", bitsText(v.Mask), "--ctmask", bitsText(v.ConnectionMask)}
}
func (v SaveMark) verdict() []string {
	return []string{"-j", "CONNMARK", "--save-mark", "--nfmask", bitsText(v.Mask), "--ctmask", bitsText(v.ConnectionMask)}
}
func (v ChangeConnectionMark) verdict() []string {
	return []string{"-j", "CONNMARK", "--set-xmark", bitsText(v.Invert) + "/" + bitsText(v.Mask)}
}
func (v GoTo) verdict() []string        { return []string{"-g", string(v)} }
func (v Ignored) verdict() []string     { return []string{"-j", string(v)} }
func (v OtherTarget) verdict() []string { return []string{"-j", string(v)} }
func (Redirect) verdict() []string      { return []string{"-j", "REDIRECT"} }
func (NoTrack) verdict() []string       { return []string{"-j", "NOTRACK"} }
func (v SetZone) verdict() []string     { return []string{"-j", "CT", "--zone", fmt.Sprint(v.Zone)} }
func (v SourceNAT) verdict() []string   { return []string{"-j", "SNAT", "--to-source", v.First.String()} }
