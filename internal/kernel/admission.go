package kernel

import (
	"net/netip"
	"slices"
)

// Members are the elements of sets, by the name of the set.
type Members map[string]map[Element]struct{}

// MembersOf groups members by their sets.
func MembersOf(all []Member) Members {
	members := Members{}
	for _, m := range all {
		if members[m.Set] == nil {
			members[m.Set] = map[Element]struct{}{}
		}
		members[m.Set][m.Element] = struct{}{}
	}
	return members
}

// Admission names the sets that decide which clients a port admits in user space. On the other data planes, rules match
// these sets.
type Admission struct {
	// Closed are the sets whose ports admit nobody.
	Closed []string
	// InsideOnly are the sets whose ports admit only the node itself, and the clients in Pods.
	InsideOnly []string
	Pods       []netip.Prefix
	// Firewalled are the sets whose ports admit only the clients that a set in Allowed names for the port.
	Firewalled, Allowed []string
}

// Admitted returns the ranges of the clients that a port admits; nil means every client. It returns false if the port
// admits nobody. node contains the node's own addresses.
func (a Admission) Admitted(key ServerKey, m Members, node []netip.Addr) (clients []netip.Prefix, open bool) {
	if m.has(a.Closed, key) {
		return nil, false
	}
	inside, firewalled := m.has(a.InsideOnly, key), m.has(a.Firewalled, key)
	switch {
	case inside && firewalled:
		clients = intersect(a.inside(node), a.allowed(key, m))
	case inside:
		clients = a.inside(node)
	case firewalled:
		clients = a.allowed(key, m)
	default:
		return nil, true
	}
	return clients, len(clients) > 0
}

// inside returns the clients that are inside the cluster. There may be none.
func (a Admission) inside(node []netip.Addr) []netip.Prefix {
	clients := slices.Clone(a.Pods)
	for _, addr := range node {
		clients = append(clients, netip.PrefixFrom(addr, addr.BitLen()))
	}
	return clients
}

// allowed returns the ranges of a firewalled port, sorted.
func (a Admission) allowed(key ServerKey, m Members) (ranges []netip.Prefix) {
	for _, name := range a.Allowed {
		for e := range m[name] {
			if e.Addr == key.Addr.Addr() && e.Protocol == key.Protocol && e.Port == key.Addr.Port() {
				ranges = append(ranges, netip.PrefixFrom(e.Addr2, int(e.Bits2)))
			}
		}
	}
	slices.SortFunc(ranges, netip.Prefix.Compare)
	return ranges
}

func (m Members) has(sets []string, key ServerKey) bool {
	e := Element{Addr: key.Addr.Addr(), Protocol: key.Protocol, Port: key.Addr.Port()}
	return slices.ContainsFunc(sets, func(name string) bool { _, in := m[name][e]; return in })
}

// intersect returns the ranges that are in both lists. Of two ranges that overlap, one contains the other.
func intersect(a, b []netip.Prefix) (both []netip.Prefix) {
	for _, p := range a {
		for _, q := range b {
			if p.Overlaps(q) {
				if p.Bits() < q.Bits() {
					both = append(both, q)
				} else {
					both = append(both, p)
				}
			}
		}
	}
	return both
}
