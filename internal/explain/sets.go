package explain

import (
	"net/netip"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// inOther looks the packet up in another program's ipset, where the narrowest matching range decides. Each field of the key
// comes from the packet's source or destination.
func (p *packet) inOther(set kernel.OtherSet, key kernel.SetKey, k *Kernel) matchResult {
	if set.Unread != "" {
		return maybe
	}
	result, narrowest := no, kernel.OtherElement{}
	fields, sides := strings.Split(set.Type, ","), strings.Split(string(key), ",")
	for _, e := range set.Elements {
		switch a := p.isOther(e, set, fields, sides, k); {
		case a == yes && (!narrowest.First.IsValid() || e.First.Compare(narrowest.First) >= 0 && e.Last.Compare(narrowest.Last) <= 0):
			result, narrowest = resultOf(!e.Not), e
		case a == maybe && result == no:
			result = maybe
		}
	}
	return result
}

func (p *packet) isOther(e kernel.OtherElement, set kernel.OtherSet, fields, sides []string, k *Kernel) matchResult {
	if e.Set != "" { // an element of a set of sets
		inner, read := k.OtherSets[e.Set]
		if !read || inner.Type == set.Type {
			return maybe
		}
		return p.inOther(inner, kernel.SetKey(strings.Join(sides, ",")), k)
	}
	if len(sides) < len(fields) {
		return maybe
	}
	least := yes
	for i, field := range fields {
		least = min(least, p.hasField(e, field, sides[i] == "src"))
		if field == "ip" || field == "net" { // the next address field is the second address of the element
			e.First, e.Last = e.First2, e.Last2
		}
	}
	return least
}

// hasField compares one field of an element with the packet's source or destination.
func (p *packet) hasField(e kernel.OtherElement, field string, source bool) matchResult {
	port, name := p.to.Port(), p.out
	if source {
		port, name = p.port, p.in
	}
	switch field {
	case "ip", "net":
		return between(p.end(source), e.First, e.Last)
	case "port":
		return resultOf(e.Port.First <= port && port <= e.Port.Last && (e.Protocol == 0 || e.Protocol == p.protocol))
	case "mark":
		return markIs(p.mark, p.markUnknown, e.Mark, ^uint32(0))
	case "iface":
		return through(name, e.Interface, false)
	}
	return maybe // Ethernet addresses
}

func between(a, low, high netip.Addr) matchResult {
	if !a.IsValid() {
		return maybe
	}
	return resultOf(a.Compare(low) >= 0 && a.Compare(high) <= 0)
}
