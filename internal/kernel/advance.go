package kernel

import (
	"net/netip"
	"slices"
)

// Advance changes the state as a successful operation changed the kernel. It costs the size of the operation.
func (s *State) Advance(op Op) {
	switch o := op.Object.(type) {
	case SysctlSetting:
		s.Sysctls[o.Name] = o.Value
	case DummyDevice:
		s.advanceDevice(op.Verb)
	case BoundAddress:
		advance(s.Addresses, o.Addr, op.Verb)
	case Set:
		s.advanceSet(op.Verb, o)
	case Member:
		advance(s.Members[o.Set], o.Element, op.Verb)
	case Ruleset:
		if op.Verb == Delete {
			delete(s.Rules, o.Family)
		} else {
			s.Rules[o.Family] = o.View()
		}
	case Server:
		s.advanceServer(op.Verb, o)
	case ServerDestination:
		s.advanceDestination(op.Verb, o)
	case Timeouts:
		s.Timeouts = s.Timeouts.With(o)
	}
}

func advance[K comparable](m map[K]struct{}, key K, verb Verb) {
	if verb == Delete {
		delete(m, key)
		return
	}
	m[key] = struct{}{}
}

func (s *State) advanceDevice(verb Verb) {
	s.Device = verb == Create
	if !s.Device {
		s.Addresses = map[netip.Addr]struct{}{}
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
	// A set that only grows keeps its members; another type cannot.
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

func (s *State) advanceDestination(verb Verb, d ServerDestination) {
	server, stands := s.Servers[d.Server]
	if !stands {
		return
	}
	i, found := slices.BinarySearchFunc(server.Destinations, d.Destination, func(o ObservedDestination, w Destination) int {
		return o.Compare(w)
	})
	// Readers may hold the old list: it is replaced, not changed.
	list := slices.Clone(server.Destinations)
	switch {
	case verb == Delete && found:
		list = slices.Delete(list, i, i+1)
	case verb != Delete && found:
		list[i].Destination, list[i].Forwarding = d.Destination, ForwardMasq
	case verb != Delete:
		list = slices.Insert(list, i, ObservedDestination{Destination: d.Destination, Forwarding: ForwardMasq})
	}
	server.Destinations = list
	s.Servers[d.Server] = server
}
