package flows

import (
	"maps"
	"net/netip"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

type scope struct {
	// all is true until all flows have been checked once, because a new agent does not know about earlier changes.
	all bool
	// servers contains the changed virtual servers. addresses contains the addresses at which no virtual server was
	// reachable.
	servers   map[kernel.ServerKey]struct{}
	addresses map[netip.Addr]struct{}
	// plain is true if flows may have begun while something that masquerades them was missing.
	plain bool
}

func newScope() scope {
	return scope{servers: map[kernel.ServerKey]struct{}{}, addresses: map[netip.Addr]struct{}{}}
}

func (s *scope) empty() bool {
	return !s.all && !s.plain && len(s.servers) == 0 && len(s.addresses) == 0
}

func (s *scope) add(other scope) {
	s.all = s.all || other.all
	maps.Copy(s.servers, other.servers)
	maps.Copy(s.addresses, other.addresses)
	s.plain = s.plain || other.plain
}

func (s *scope) note(op kernel.Op, have *kernel.State, withoutIPVS bool) {
	switch o := op.Object.(type) {
	case kernel.Server:
		if op.Verb != kernel.Update {
			s.servers[o.Key] = struct{}{}
		}
	case kernel.ServerDestination:
		if op.Verb == kernel.Delete && (withoutIPVS || silent(o.Server.Protocol)) {
			s.servers[o.Server] = struct{}{}
		}
	case kernel.Member:
		key := kernel.ServerKey{Addr: netip.AddrPortFrom(o.Element.Addr, o.Element.Port), Protocol: o.Element.Protocol}
		_, allPorts := have.Servers[key.AllPorts()]
		if allPorts && op.Verb == kernel.Delete && (withoutIPVS || silent(key.Protocol)) {
			s.servers[key] = struct{}{}
		}
	case kernel.BoundAddress:
		if op.Verb == kernel.Create {
			s.addresses[o.Addr] = struct{}{}
		}
	}
}

// silent reports whether clients of a protocol do not notice when their endpoint is deleted. TCP clients notice,
// because IPVS ends all connections to a deleted destination.
func silent(p inet.Protocol) bool { return p != inet.TCP }

func (s *scope) noted(key kernel.ServerKey) bool {
	_, changed := s.servers[key]
	_, bound := s.addresses[key.Addr.Addr()]
	return changed || bound
}

func (s *scope) has(key kernel.ServerKey) bool { return s.all || s.noted(key) }

func (s *scope) concerned() map[netip.Addr]struct{} {
	list := maps.Clone(s.addresses)
	for key := range s.servers {
		list[key.Addr.Addr()] = struct{}{}
	}
	return list
}
