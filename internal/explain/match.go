package explain

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// matchResult is the result of matching a rule, or one of its matches, against a packet.
type matchResult uint8

const (
	no matchResult = iota
	maybe
	yes
)

func (a matchResult) not() matchResult { return yes - a }

func resultOf(is bool) matchResult {
	if is {
		return yes
	}
	return no
}

// condition describes the unknown matches that decide whether a rule matches.
type condition struct {
	// text lists the matches with an unknown result.
	text string
	// opaque is true if explain cannot evaluate one of the matches. Otherwise, they depend only on the client, and the
	// result is certain if the question names the client.
	opaque bool
}

func (c condition) and(d condition) condition {
	return condition{strings.TrimSpace(c.text + " " + d.text), c.opaque || d.opaque}
}

// evaluate returns the lowest of the match results at a hook, and the condition if the result is maybe.
func evaluate(r kernel.Rule, k *Kernel, p *packet, hook place) (matchResult, condition) {
	least, unknown := yes, condition{}
	for _, c := range r.Conditions {
		a := matches(c, k, p, hook)
		if a == maybe {
			unknown = unknown.and(condition{kernel.ConditionText(c), !dependsOnClient(c, k, p)})
		}
		least = min(least, a)
	}
	return least, unknown
}

// dependsOnClient reports whether the result of a match is unknown only because the client, or its incoming interface,
// is unknown.
func dependsOnClient(c kernel.Condition, k *Kernel, p *packet) bool {
	switch c := c.(type) {
	case kernel.Negated:
		return dependsOnClient(c.Condition, k, p)
	case kernel.Arrives:
		return p.in == ""
	case kernel.From, kernel.FromThisNode, kernel.To, kernel.ToThisNode, kernel.AddrRange:
		return p.anyClient()
	case kernel.AddrType:
		return !p.end(c.Source).IsValid()
	case kernel.InSet:
		_, ours := k.Sets[c.Set]
		_, theirs := k.OtherSets[c.Set]
		return (ours || theirs) && p.anyClient()
	}
	return false
}

func matches(c kernel.Condition, k *Kernel, p *packet, hook place) matchResult {
	switch c := c.(type) {
	case kernel.Negated:
		return matches(c.Condition, k, p, hook).not()
	case kernel.From:
		return within(p.from, c.Prefix)
	case kernel.To:
		return p.goesTo(k, c.Prefix)
	case kernel.AddrRange:
		return p.inRange(c)
	case kernel.AddrType:
		return k.ofType(p.end(c.Source), c)
	case kernel.ToThisNode:
		return k.ofType(p.to.Addr(), kernel.AddrType{Types: local})
	case kernel.FromThisNode:
		return k.ofType(p.from, kernel.AddrType{Types: local})
	case kernel.ReversePath:
		return p.reversePath(k)
	case kernel.Arrives:
		return arrives(p, c, hook)
	case kernel.Leaves:
		return leaves(p, c, hook)
	case kernel.InSet:
		if c.Not {
			return inSet(k, p, c).not()
		}
		return inSet(k, p, c)
	}
	return p.matches(c)
}

func (p *packet) matches(c kernel.Condition) matchResult {
	switch c := c.(type) {
	case kernel.OfProtocol:
		return resultOf(p.protocol == c.Protocol)
	case kernel.ToPorts:
		return resultOf(c.Contain(p.to.Port()))
	case kernel.FromPorts:
		return resultOf(c.Contain(p.port))
	case kernel.EitherPorts:
		return resultOf(c.Contain(p.port) || c.Contain(p.to.Port()))
	case kernel.TCPFlags:
		return resultOf(p.protocol == inet.TCP && p.flags()&c.Mask == c.Set)
	case kernel.Ping, kernel.Invalid: // packets to Services are neither
		return no
	case kernel.OfSocket:
		if !p.sent || p.reply {
			return no
		}
	case kernel.NotOurs:
		return no
	case kernel.Length:
		return p.hasLength(c)
	}
	return p.tracked(c)
}

// tracked evaluates conditions on the connection and on marks.
func (p *packet) tracked(c kernel.Condition) matchResult {
	switch c := c.(type) {
	case kernel.OriginalTo:
		return within(p.original.to.Addr(), c.Prefix)
	case kernel.OriginalToPorts:
		return resultOf(c.Contain(p.original.to.Port()))
	case kernel.Replies:
		return resultOf(p.reply)
	case kernel.Established:
		return resultOf((p.tracking == established) != c.Not)
	case kernel.States:
		return resultOf(slices.Contains(c, p.tracking) || slices.Contains(c, "DNAT") && p.translated)
	case kernel.Marked:
		a := markIs(p.mark, p.markUnknown, c.Bits, c.Bits)
		if c.Not {
			return a.not()
		}
		return a
	case kernel.MarkIs:
		return markIs(p.mark, p.markUnknown, c.Bits, c.Mask)
	case kernel.ConnectionMarkIs:
		return markIs(p.ctMark, p.ctMarkUnknown, c.Bits, c.Mask)
	}
	return maybe
}

// markIs compares the masked bits of a mark, some of which may be unknown.
func markIs(mark, unknown, want, mask uint32) matchResult {
	switch {
	case (mark^want)&mask&^unknown != 0 || want&^mask != 0:
		return no
	case mask&unknown != 0:
		return maybe
	}
	return yes
}

func (p *packet) anyClient() bool { return !p.from.IsValid() || !p.to.Addr().IsValid() }

func (p *packet) end(source bool) netip.Addr {
	if source {
		return p.from
	}
	return p.to.Addr()
}

func (p *packet) inRange(c kernel.AddrRange) matchResult {
	a := p.end(c.Source)
	if !a.IsValid() {
		return maybe
	}
	return resultOf(a.Compare(c.First) >= 0 && a.Compare(c.Last) <= 0)
}

var local = []string{"LOCAL"}

// ofType matches the type of an address. Addresses of clients, Services and endpoints are unicast.
func (k *Kernel) ofType(a netip.Addr, c kernel.AddrType) matchResult {
	isLocal, isUnicast := slices.Contains(c.Types, "LOCAL"), slices.Contains(c.Types, "UNICAST")
	switch {
	case !isLocal && !isUnicast:
		return no
	case isLocal && isUnicast:
		return yes
	case !a.IsValid():
		return maybe
	case k.IsLocal(a) && c.OfInterface && isLocal:
		return maybe
	case k.IsLocal(a):
		return resultOf(isLocal)
	}
	return resultOf(isUnicast)
}

// reversePath matches packets that arrive on the interface of the route to their source.
func (p *packet) reversePath(k *Kernel) matchResult {
	back := k.Routes[p.from].Interface
	return resultOf(p.sent || p.in == "" || back == "" || back == p.in)
}

func (p *packet) goesTo(k *Kernel, r netip.Prefix) matchResult {
	if p.toNode && !p.to.Addr().IsValid() && !slices.ContainsFunc(k.NodeAddresses, r.Contains) {
		return no
	}
	return within(p.to.Addr(), r)
}

func within(a netip.Addr, r netip.Prefix) matchResult {
	if !a.IsValid() {
		return maybe
	}
	return resultOf(r.Contains(a))
}

// arrives matches the incoming interface, and records that a rule depends on it. A packet sent by this node has no
// incoming interface, unless it returns to the node itself. In OUTPUT, no packet has one, not even one that IPVS sends on.
func arrives(p *packet, c kernel.Arrives, hook place) matchResult {
	if !hook.arrives || p.sent && p.in == "" {
		return no
	}
	p.arrivalAsked = true
	return through(p.in, c.Interface, c.Prefix)
}

// leaves matches the outgoing interface, which a packet has only after it was routed.
func leaves(p *packet, c kernel.Leaves, hook place) matchResult {
	if !hook.leaves {
		return no
	}
	return through(p.out, c.Interface, c.Prefix)
}

func through(name, wanted string, isPrefix bool) matchResult {
	if name == "" {
		return maybe
	}
	return resultOf(name == wanted || isPrefix && strings.HasPrefix(name, wanted))
}

func inSet(k *Kernel, p *packet, c kernel.InSet) matchResult {
	set, ours := k.Sets[c.Set]
	if theirs, read := k.OtherSets[c.Set]; !ours && read {
		return p.inOther(theirs, c.Key, k)
	}
	if !ours {
		return maybe
	}
	found := inMembers(p, set.Type, c.Key, k.Members[c.Set])
	if found == no && set.Stray {
		return maybe // one of the members that explain cannot represent may match
	}
	return found
}

func inMembers(p *packet, t kernel.SetType, key kernel.SetKey, members map[kernel.Element]struct{}) matchResult {
	switch key {
	case kernel.KeyDestination, kernel.KeyDestinationPort:
		_, in := members[p.element(t)]
		return resultOf(in)
	case kernel.KeySource:
		return holdsSource(p, members)
	case kernel.KeyDestinationClient:
		return holdsClient(p, t, members)
	}
	return maybe
}

// holdsSource looks up the client. An unknown client is assumed not to be an address of this node.
func holdsSource(p *packet, members map[kernel.Element]struct{}) matchResult {
	_, in := members[kernel.Element{Addr: p.from}]
	return resultOf(p.from.IsValid() && in)
}

// holdsClient looks up the frontend together with the client.
func holdsClient(p *packet, t kernel.SetType, members map[kernel.Element]struct{}) matchResult {
	place, found := p.element(t), false
	for e := range members {
		if e.Addr != place.Addr || e.Port != place.Port || e.Protocol != place.Protocol {
			continue
		}
		bits := int(e.Bits2)
		if bits == 0 {
			bits = e.Addr2.BitLen()
		}
		if p.from.IsValid() && netip.PrefixFrom(e.Addr2, bits).Contains(p.from) {
			return yes
		}
		found = true
	}
	if found && !p.from.IsValid() {
		return maybe
	}
	return no
}
