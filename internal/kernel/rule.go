package kernel

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
)

// Rule is one iptables rule. The verdict applies to packets that match all conditions.
type Rule struct {
	// Why is the reason for the rule. The rule's comment in the kernel includes it.
	Why        string
	Conditions []Condition
	Verdict    Verdict
}

// Condition is one of InSet, Established, Invalid, From, To, ToThisNode, Arrives, OfProtocol, Ping, Marked. Other programs' rules use
// more conditions and verdicts.
type Condition interface{ condition() []string }

// Verdict is one of Final, JumpTo, Masquerade, SetMark, FlipMark, Reject, Balance.
type Verdict interface{ verdict() []string }

// Args returns the rule in iptables' syntax, without its comment.
func (r Rule) Args() []string {
	var args []string
	for _, m := range r.Conditions {
		args = append(args, m.condition()...)
	}
	return append(args, r.Verdict.verdict()...)
}

func (r Rule) String() string { return strings.Join(r.Args(), " ") }

// SetKey lists the packet fields that are looked up in a set, in ipset's syntax.
type SetKey string

// The keys. The port of a key includes its protocol.
const (
	KeySource            SetKey = "src"
	KeyDestination       SetKey = "dst"
	KeyDestinationPort   SetKey = "dst,dst"
	KeyDestinationClient SetKey = "dst,dst,src"
)

// InSet matches packets whose key is in the set; with Not, all others.
type InSet struct {
	Set string
	Key SetKey
	Not bool
}

// Established matches packets of connections that have seen a reply, according to conntrack, and ICMP errors about
// them; with Not, all others.
type Established struct{ Not bool }

// Invalid matches packets that conntrack cannot assign to a connection and that are therefore not translated.
type Invalid struct{}

// From matches packets whose source is in the range. The range has no host bits.
type From struct{ netip.Prefix }

// To matches packets whose destination is in the range. The range has no host bits.
type To struct{ netip.Prefix }

// ToThisNode matches packets to the node's own addresses.
type ToThisNode struct{}

// Arrives matches packets by their input interface: this interface or, with Prefix, all interfaces whose names have the prefix.
type Arrives struct {
	Interface string
	Prefix    bool
}

// OfProtocol matches packets of a transport protocol.
type OfProtocol struct{ inet.Protocol }

// Ping matches the family's ICMP packets.
type Ping struct{ inet.Family }

// Marked matches packets with these bits set in their mark; with Not, all others.
type Marked struct {
	Bits uint32
	Not  bool
}

func (m InSet) condition() []string {
	return slices.Concat([]string{"-m", "set"}, not(m.Not), []string{"--match-set", m.Set, string(m.Key)})
}

func (m Established) condition() []string {
	return slices.Concat([]string{"-m", "conntrack"}, not(m.Not), []string{"--ctstate", "RELATED,ESTABLISHED"})
}

func (Invalid) condition() []string {
	return []string{"-m", "conntrack", "--ctstate", "INVALID"}
}

func (m From) condition() []string       { return []string{"-s", m.String()} }
func (m To) condition() []string         { return []string{"-d", m.String()} }
func (ToThisNode) condition() []string   { return []string{"-m", "addrtype", "--dst-type", "LOCAL"} }
func (m OfProtocol) condition() []string { return []string{"-p", m.String()} }

func (m Arrives) condition() []string {
	return []string{"-i", interfaces(m.Interface, m.Prefix)}
}

func interfaces(name string, isPrefix bool) string {
	if isPrefix {
		return name + "+"
	}
	return name
}

func (m Ping) condition() []string {
	if m.Family == inet.IPv6 {
		return []string{"-p", "ipv6-icmp"}
	}
	return []string{"-p", "icmp"}
}

func (m Marked) condition() []string {
	return slices.Concat([]string{"-m", "mark"}, not(m.Not), []string{"--mark", bitsText(m.Bits) + "/" + bitsText(m.Bits)})
}

func not(not bool) []string {
	if not {
		return []string{"!"}
	}
	return nil
}

func bitsText(bits uint32) string { return fmt.Sprintf("0x%x", bits) }

// Final is a verdict that ends the chain.
type Final string

// The verdicts that end a chain, as in iptables.
const (
	Accept Final = "ACCEPT"
	Drop   Final = "DROP"
	Return Final = "RETURN"
)

// JumpTo continues in another chain of the table. A packet without a verdict there returns to this chain.
type JumpTo string

// Masquerade gives the connection the node's address as its source.
type Masquerade struct {
	RandomPort bool
}

// SetMark sets bits of the packet's mark.
type SetMark uint32

// FlipMark inverts bits of the packet's mark.
type FlipMark uint32

// Balance gives the connection an endpoint of its virtual server. If there is no endpoint, the packet
// continues with the next rule. Only nftables has this verdict: IPVS balances without a rule.
type Balance struct{}

// Reject answers with an ICMP error, named as in iptables.
type Reject string

// The errors. IPv6 has no error for an unreachable protocol.
const (
	PortUnreachable     Reject = "icmp-port-unreachable"
	ProtocolUnreachable Reject = "icmp-proto-unreachable"
	PortUnreachable6    Reject = "icmp6-port-unreachable"
)

func (v Final) verdict() []string   { return []string{"-j", string(v)} }
func (v JumpTo) verdict() []string  { return []string{"-j", string(v)} }
func (v SetMark) verdict() []string { return []string{"-j", "MARK", "--or-mark", bitsText(uint32(v))} }
func (v FlipMark) verdict() []string {
	return []string{"-j", "MARK", "--xor-mark", bitsText(uint32(v))}
}
func (Balance) verdict() []string  { return []string{"-j", "BALANCE"} }
func (v Reject) verdict() []string { return []string{"-j", "REJECT", "--reject-with", string(v)} }

func (v Masquerade) verdict() []string {
	if v.RandomPort {
		return []string{"-j", "MASQUERADE", "--random-fully"}
	}
	return []string{"-j", "MASQUERADE"}
}
