package kernel

import (
	"net/netip"
	"slices"
)

// Advance applies successful operations to the state.
func (s *State) Advance(ops ...Op) {
	for len(ops) > 0 {
		done := 1
		if d, ok := ops[0].Object.(ServerDestination); ok {
			done = destinationsOf(d.Server, ops)
			s.advanceDestinations(d.Server, ops[:done])
		} else {
			s.advance(ops[0])
		}
		ops = ops[done:]
	}
}

func destinationsOf(server ServerKey, ops []Op) int {
	n := slices.IndexFunc(ops, func(op Op) bool {
		d, ok := op.Object.(ServerDestination)
		return !ok || d.Server != server
	})
	if n < 0 {
		return len(ops)
	}
	return n
}

// LookedUp updates the state with the result of a lookup of virtual servers. Virtual servers that the lookup did not find do not exist.
func (s *State) LookedUp(keys []ServerKey, found map[ServerKey]ObservedServer) {
	for _, key := range keys {
		if server, exists := found[key]; exists {
			s.Servers[key] = server
		} else {
			delete(s.Servers, key)
		}
	}
}

func (s *State) advance(op Op) {
	switch o := op.Object.(type) {
	case SysctlSetting:
		s.Sysctls[o.Name] = o.Value
	case DummyDevice:
		s.advanceDevice(op.Verb)
	case BoundAddress:
		o.Advance(s.Addresses, op.Verb)
	case Set:
		s.advanceSet(op.Verb, o)
	case Member:
		advanceIn(s.Members[o.Set], o.Element, op.Verb)
	case Ruleset:
		if op.Verb == Delete {
			delete(s.Rules, o.Family)
		} else {
			s.Rules[o.Family] = o.View()
		}
	case Server:
		s.advanceServer(op.Verb, o)
	case Timeouts:
		s.Timeouts = s.Timeouts.With(o)
	}
}

func advanceIn[K comparable](m map[K]struct{}, key K, verb Verb) {
	if verb == Delete {
		delete(m, key)
		return
	}
	m[key] = struct{}{}
}

func (s *State) advanceDevice(verb Verb) {
	s.Device = verb == Create
	if !s.Device {
		s.Addresses = map[netip.Addr]Binding{}
		delete(s.Sysctls, IPv6Switch)
	} else if off, read := s.Sysctls[IPv6SwitchOfNext]; read {
		s.Sysctls[IPv6Switch] = off
	}
}

func (s *State) advanceSet(verb Verb, set Set) {
	if verb == Delete {
		delete(s.Sets, set.Name)
		delete(s.Members, set.Name)
		return
	}
	before := s.Sets[set.Name]
	s.Sets[set.Name] = set
	// A set that only grows keeps its members; a set whose type changes loses them.
	if verb != Update || before.Type != set.Type || before.Family != set.Family {
		s.Members[set.Name] = map[Element]struct{}{}
	}
}

func (s *State) advanceServer(verb Verb, server Server) {
	if verb == Delete {
		delete(s.Servers, server.Key)
		return
	}
	s.Servers[server.Key] = ObservedServer{Server: server, Destinations: s.Servers[server.Key].Destinations}
}

func (s *State) advanceDestinations(key ServerKey, ops []Op) {
	server, stands := s.Servers[key]
	if !stands {
		return
	}
	// Replace the list instead of modifying it: readers may still use the old one.
	list := append(make([]ObservedDestination, 0, len(server.Destinations)+created(ops)), server.Destinations...)
	for _, op := range ops {
		list = advanceDestination(list, op.Verb, op.Object.(ServerDestination).Destination)
	}
	server.Destinations = list
	s.Servers[key] = server
}

func created(ops []Op) int {
	n := 0
	for _, op := range ops {
		if op.Verb == Create {
			n++
		}
	}
	return n
}

func advanceDestination(list []ObservedDestination, verb Verb, d Destination) []ObservedDestination {
	i, found := slices.BinarySearchFunc(list, d, func(o ObservedDestination, w Destination) int { return o.Compare(w) })
	switch {
	case verb == Delete && found:
		return slices.Delete(list, i, i+1)
	case verb != Delete && found:
		list[i].Destination, list[i].Forwarding = d, ForwardMasq
	case verb != Delete:
		return slices.Insert(list, i, ObservedDestination{Destination: d, Forwarding: ForwardMasq})
	}
	return list
}
