package kernel

import (
	"cmp"
	"fmt"
	"net/netip"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
)

// SetType is the name of an ipset type.
type SetType string

// The set types in use.
const (
	HashIP       SetType = "hash:ip"
	HashIPPort   SetType = "hash:ip,port"
	HashIPPortIP SetType = "hash:ip,port,ip"
	// HashIPPortNet has a range as its second address. The kernel does not support the range of all addresses (/0).
	HashIPPortNet SetType = "hash:ip,port,net"
)

// Set is an ipset without its members.
type Set struct {
	Name    string
	Type    SetType
	Family  inet.Family
	MaxElem uint32
	// Stray is true if the set has members that no Element can represent, such as a range that is not a prefix. Only nftables allows them.
	Stray bool
}

// String prints the set as an `ipset create` line.
func (s Set) String() string {
	family := "inet"
	if s.Family == inet.IPv6 {
		family = "inet6"
	}
	text := fmt.Sprintf("%s %s family %s maxelem %d", s.Name, s.Type, family, s.MaxElem)
	if s.Stray {
		text += " # and members that the agent cannot have written"
	}
	return text
}

// Element is an element of a set of any of these types. Fields that the type lacks are zero.
type Element struct {
	Addr     netip.Addr
	Protocol inet.Protocol
	Port     uint16
	Addr2    netip.Addr
	// Bits2 is the prefix length that makes Addr2 a range. In sets of ranges it is never 0, and it is the full length for a single
	// address; in other sets it is 0.
	Bits2 uint8
}

// String prints the element as ipset does.
func (e Element) String() string {
	switch {
	case e.Bits2 != 0 && int(e.Bits2) != e.Addr2.BitLen(): // ipset also prints a range of one address as an address
		return fmt.Sprintf("%s,%s:%d,%s/%d", e.Addr, e.Protocol, e.Port, e.Addr2, e.Bits2)
	case e.Addr2.IsValid():
		return fmt.Sprintf("%s,%s:%d,%s", e.Addr, e.Protocol, e.Port, e.Addr2)
	case e.Protocol != 0:
		return fmt.Sprintf("%s,%s:%d", e.Addr, e.Protocol, e.Port)
	}
	return e.Addr.String()
}

// Compare orders elements by address, port, protocol and second address or range.
func (e Element) Compare(o Element) int {
	return cmp.Or(
		e.Addr.Compare(o.Addr),
		cmp.Compare(e.Port, o.Port),
		cmp.Compare(e.Protocol, o.Protocol),
		e.Addr2.Compare(o.Addr2),
		cmp.Compare(e.Bits2, o.Bits2),
	)
}

// Member is one element of one set.
type Member struct {
	Set     string
	Element Element
}

// String prints the member's arguments of `ipset add`.
func (m Member) String() string { return m.Set + " " + m.Element.String() }

// Compare orders members by set and element.
func (m Member) Compare(o Member) int {
	return cmp.Or(cmp.Compare(m.Set, o.Set), m.Element.Compare(o.Element))
}

// OtherSet is another program's ipset.
type OtherSet struct {
	// Type lists the fields of the elements, such as "ip,port"; "set" for a set of sets.
	Type string
	// Unread is the reason why the elements are unknown; empty if they are known.
	Unread   string
	Elements []OtherElement
}

// OtherElement is an element of another program's ipset. Fields that the type lacks are zero.
type OtherElement struct {
	First, Last, First2, Last2 netip.Addr
	Port                       PortRange
	Protocol                   inet.Protocol
	Mark                       uint32
	Interface, Set             string
	// Not excludes the element from the set.
	Not bool
}
