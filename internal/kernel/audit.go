package kernel

import (
	"iter"
	"maps"
	"net/netip"
	"slices"
)

// Audit names the objects that an audit must return even if they have not changed since the previous audit, because the agent
// cannot infer their state.
type Audit struct {
	All bool
	// Servers, Members and Addresses name what the agent has written or looked up since the previous audit. If it has written a set, or the device, Sets or
	// AllAddresses ask for everything in it.
	Servers      map[ServerKey]struct{}
	Members      map[Member]struct{}
	Sets         map[string]struct{}
	Addresses    map[netip.Addr]struct{}
	AllAddresses bool
	// Limited lists the virtual servers with connection limits; only a lookup returns these limits.
	Limited []ServerKey
}

// Differences contains what changed since the previous audit, plus the objects that the Audit requested.
type Differences struct {
	// All is true if the differences are complete: an object missing from them does not exist or was not seen.
	All bool
	// Servers contains the virtual servers that differ. A server that the audit did not see, because it was deleted or missed, is nil.
	Servers map[ServerKey]*ObservedServer
	// Members contains sets with members that differ or that the Audit names, and the sets that it names.
	Members   map[string]Changes[Element, struct{}]
	Addresses Changes[netip.Addr, Binding]
	// Base contains the remaining state, even if nothing differs.
	Base State
	// Node is nil if the node's addresses and networks could not be read.
	Node *Node
}

// Changes are the entries of a map that an audit returns. The agent merges them while changes wait, so they should be few
// where the map is large.
type Changes[K, V comparable] struct {
	// All is true if Now is complete: every other entry is gone.
	All  bool
	Now  map[K]V
	Gone map[K]struct{}
}

// Len returns the number of entries.
func (c Changes[K, V]) Len() int { return len(c.Now) + len(c.Gone) }

// changes compares two reads of a map. The result includes the asked entries.
func changes[K, V comparable](last, fresh map[K]V, asked iter.Seq[K]) Changes[K, V] {
	var c Changes[K, V]
	stayed := 0
	for key, value := range fresh {
		before, existed := last[key]
		if existed {
			stayed++
		}
		if !existed || before != value {
			c.see(key, fresh)
		}
	}
	if stayed < len(last) {
		for key := range last {
			if _, exists := fresh[key]; !exists {
				c.see(key, fresh)
			}
		}
	}
	for key := range asked {
		c.see(key, fresh)
	}
	return c
}

func (c *Changes[K, V]) see(key K, in map[K]V) {
	value, exists := in[key]
	switch {
	case exists && c.Now == nil:
		c.Now = map[K]V{key: value}
	case exists:
		c.Now[key] = value
	case c.Gone == nil:
		c.Gone = map[K]struct{}{key: {}}
	default:
		c.Gone[key] = struct{}{}
	}
}

// Comparer compares each read with the previous one. The zero value is ready to use.
type Comparer struct{ last *State }

// Compare compares a read with the previous one and retains it, so the caller must not modify it afterward. found contains the virtual
// servers of audit.Limited that exist.
func (c *Comparer) Compare(fresh *State, audit Audit, found map[ServerKey]ObservedServer) *Differences {
	last := c.last
	if last == nil || audit.All {
		last = NewState()
		audit.All = true
	}
	d := &Differences{All: audit.All, Servers: map[ServerKey]*ObservedServer{}, Members: map[string]Changes[Element, struct{}]{}, Base: *fresh}
	d.Base.Servers, d.Base.Members, d.Base.Addresses = nil, nil, nil
	d.servers(last, fresh, audit, found)
	d.members(last, fresh, audit)
	if audit.All || audit.AllAddresses {
		d.Addresses = Changes[netip.Addr, Binding]{All: true, Now: fresh.Addresses}
	} else {
		d.Addresses = changes(last.Addresses, fresh.Addresses, maps.Keys(audit.Addresses))
	}
	c.last = fresh
	return d
}

func (d *Differences) members(last, fresh *State, audit Audit) {
	asked := map[string][]Element{}
	for m := range audit.Members {
		asked[m.Set] = append(asked[m.Set], m.Element)
	}
	for name, members := range fresh.Members {
		if _, written := audit.Sets[name]; written || audit.All {
			d.Members[name] = Changes[Element, struct{}]{All: true, Now: members}
		} else if c := changes(last.Members[name], members, slices.Values(asked[name])); c.Len() > 0 {
			d.Members[name] = c
		}
	}
}

func (d *Differences) servers(last, fresh *State, audit Audit, found map[ServerKey]ObservedServer) {
	for key, server := range fresh.Servers {
		before, existed := last.Servers[key]
		if !existed || !server.sameAs(before) {
			d.see(key, fresh.Servers)
		}
	}
	for key := range last.Servers {
		if _, exists := fresh.Servers[key]; !exists {
			d.Servers[key] = nil
		}
	}
	for key := range audit.Servers {
		d.see(key, fresh.Servers)
	}
	for _, key := range audit.Limited {
		d.see(key, found)
	}
}

func (d *Differences) see(key ServerKey, in map[ServerKey]ObservedServer) {
	d.Servers[key] = nil
	if server, exists := in[key]; exists {
		d.Servers[key] = &server
	}
}

// sameAs compares connection counts only for destinations that receive no new connections, because the agent waits for their last
// connection to close.
func (s ObservedServer) sameAs(o ObservedServer) bool {
	return s.equal(o, func(d ObservedDestination) bool { return d.Weight == 0 })
}

// SameConfig reports whether two observations of a virtual server differ only in counts, if at all.
func (s ObservedServer) SameConfig(o ObservedServer) bool {
	return s.equal(o, func(ObservedDestination) bool { return false })
}

func (s ObservedServer) equal(o ObservedServer, counts func(ObservedDestination) bool) bool {
	if a, b := s.Destinations, o.Destinations; len(a) > 0 && len(a) == len(b) && &a[0] == &b[0] {
		return s.Server == o.Server
	}
	return s.Server == o.Server && slices.EqualFunc(s.Destinations, o.Destinations, func(a, b ObservedDestination) bool {
		if !counts(a) {
			a.Stats, b.Stats = DestinationStats{}, DestinationStats{}
		}
		return a == b
	})
}
