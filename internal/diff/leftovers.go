package diff

import (
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Leftovers lists unwanted objects on our device that have no owner record. They are reported, never deleted.
type Leftovers struct {
	Servers   []kernel.ServerKey
	Addresses []netip.Addr
}

// AllLeftovers looks for leftovers among all objects of the kernel.
func AllLeftovers(w *Target, have *kernel.State, opt Options) Leftovers {
	return leftoversAmong(maps.Keys(have.Servers), maps.Keys(have.Addresses), w, have, opt)
}

func leftoversAmong(servers iter.Seq[kernel.ServerKey], addrs iter.Seq[netip.Addr], w *Target, have *kernel.State, opt Options) Leftovers {
	var l Leftovers
	for addr := range addrs {
		if _, exists := have.Addresses[addr]; exists && !w.HasAddress(addr) {
			l.Addresses = append(l.Addresses, addr)
		}
	}
	if len(l.Addresses) > 0 { // listing our addresses is slow with many Services
		ours := ownedAddresses(w, have, opt)
		l.Addresses = slices.DeleteFunc(l.Addresses, func(addr netip.Addr) bool {
			bound := have.Addresses[addr]
			own, some := ownBinding(ours, addr, bound)
			return some && own == bound
		})
	}
	for key := range servers {
		_, exists := have.Servers[key]
		_, bound := have.Addresses[key.Addr.Addr()]
		if exists && bound && wanted(w, key) == nil && !recorded(w, have, key, opt) {
			l.Servers = append(l.Servers, key)
		}
	}
	slices.SortFunc(l.Servers, kernel.ServerKey.Compare)
	slices.SortFunc(l.Addresses, netip.Addr.Compare)
	return l
}

// Suspects are the only objects that can be leftovers until the next full comparison: the foreign virtual servers and the unwanted addresses that
// the last one found, and what was touched since. An audit that finds anything else, such as an object that another program has added, reports a
// difference, which forces a full comparison. A node has few suspects, so an audit that finds no difference looks only at these.
type Suspects struct {
	servers   map[kernel.ServerKey]struct{}
	addresses map[netip.Addr]struct{}
}

// NewSuspects returns the suspects after a full comparison, which found that ours are our virtual servers.
func NewSuspects(w *Target, have *kernel.State, ours map[kernel.ServerKey]struct{}) *Suspects {
	s := &Suspects{map[kernel.ServerKey]struct{}{}, map[netip.Addr]struct{}{}}
	for key := range have.Servers {
		if _, own := ours[key]; !own {
			s.servers[key] = struct{}{}
		}
	}
	for addr := range have.Addresses {
		if !w.HasAddress(addr) {
			s.addresses[addr] = struct{}{}
		}
	}
	return s
}

// Add adds what a sync has touched.
func (s *Suspects) Add(touched *want.Touched) {
	maps.Copy(s.servers, touched.Servers)
	maps.Copy(s.addresses, touched.Addresses)
}

// Leftovers returns the same as AllLeftovers. Objects that are wanted now are no suspects any more.
func (s *Suspects) Leftovers(w *Target, have *kernel.State, opt Options) Leftovers {
	maps.DeleteFunc(s.servers, func(key kernel.ServerKey, _ struct{}) bool {
		_, exists := have.Servers[key]
		return !exists || w.Server(key) != nil
	})
	maps.DeleteFunc(s.addresses, func(addr netip.Addr, _ struct{}) bool {
		_, exists := have.Addresses[addr]
		return !exists || w.HasAddress(addr)
	})
	return leftoversAmong(maps.Keys(s.servers), maps.Keys(s.addresses), w, have, opt)
}
