package kernel

import (
	"fmt"
	"strings"
)

// This file has the conditions and verdicts that only rules of other programs have. The agent reads them, and never writes them.

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

// MarkIs matches packets whose mark has these bits of the mask.
type MarkIs struct{ Bits, Mask uint32 }

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

func (m ToPorts) condition() []string {
	ranges := make([]string, len(m.Ports))
	for i, r := range m.Ports {
		ranges[i] = fmt.Sprintf("%d:%d", r.First, r.Last)
	}
	return []string{"--dports", strings.Join(ranges, ",")}
}

// ConditionText is a condition in iptables' syntax, without the name of its extension.
func ConditionText(c Condition) string {
	words := c.condition()
	if words[0] == "-m" {
		words = words[2:]
	}
	return strings.Join(words, " ")
}

// ChangeMark clears the bits of the mask in the packet's mark, then inverts the other ones.
type ChangeMark struct{ Invert, Mask uint32 }

// Redirect changes the destination of the connection.
type Redirect struct{}

// NoTrack disables connection tracking for the packet.
type NoTrack struct{}

func (v ChangeMark) verdict() []string {
	return []string{"-j", "MARK", "--set-xmark", bitsText(v.Invert) + "/" + bitsText(v.Mask)}
}
func (Redirect) verdict() []string { return []string{"-j", "REDIRECT"} }
func (NoTrack) verdict() []string  { return []string{"-j", "NOTRACK"} }
