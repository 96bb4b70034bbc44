package compile

import (
	"encoding/binary"
	"maps"
	"net/netip"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// virtual indexes the virtual addresses, which are the addresses that this node has on kube-ipvs0 for any Service. No endpoint can have such an
// address, because IPVS would deliver its packets to the node itself.
//
// The result for a Service can therefore change when another Service gains or loses an address. The endpoints map shows without a search whether any
// Service is affected. It takes less than 2 MB for 10,000 Services with 10 endpoints each.
type virtual struct {
	// frontends counts the bound frontends at each virtual address.
	frontends map[netip.Addr]int32
	// endpoints counts the endpoints at each address, which is shortened because there may be hundreds of thousands.
	endpoints map[shortAddr]int32
	// changed contains the addresses that became virtual, or are no longer virtual, since the last call to takeChanged.
	changed map[netip.Addr]struct{}
	// moves counts how often the address of an endpoint became virtual, or stopped being virtual.
	moves uint64
}

func newVirtual() virtual {
	return virtual{frontends: map[netip.Addr]int32{}, endpoints: map[shortAddr]int32{}, changed: map[netip.Addr]struct{}{}}
}

func (v *virtual) has(a netip.Addr) bool { return v.frontends[a] > 0 }

// replaceEndpoints replaces the counts of a Service's old endpoints with the counts of the new ones. Either may be nil. Unchanged endpoints need no
// lookup.
func (v *virtual) replaceEndpoints(old, new *model.Service) {
	var was, is []*model.EndpointSlice
	if old != nil {
		was = old.Slices
	}
	if new != nil {
		is = new.Slices
	}
	was, is = trim(was, is, func(a, b **model.EndpointSlice) bool { return *a == *b })
	for i := range max(len(was), len(is)) {
		gone, come := trim(endpointsAt(was, i), endpointsAt(is, i), func(a, b *model.Endpoint) bool { return a.Addr == b.Addr })
		for j := range come {
			count(v.endpoints, shorten(come[j].Addr), +1)
		}
		for j := range gone {
			count(v.endpoints, shorten(gone[j].Addr), -1)
		}
	}
}

func endpointsAt(list []*model.EndpointSlice, i int) []model.Endpoint {
	if i >= len(list) {
		return nil
	}
	return list[i].Endpoints
}

// trim removes the common prefix and suffix of two lists.
func trim[T any](a, b []T, equal func(a, b *T) bool) ([]T, []T) {
	for len(a) > 0 && len(b) > 0 && equal(&a[0], &b[0]) {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && equal(&a[len(a)-1], &b[len(b)-1]) {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	return a, b
}

// replace records whether a frontend at an address was bound before, and whether it is bound now.
func (v *virtual) replace(a netip.Addr, was, is bool) {
	before := v.has(a)
	switch {
	case is && !was:
		count(v.frontends, a, +1)
	case was && !is:
		count(v.frontends, a, -1)
	}
	if v.has(a) == before {
		return
	}
	if v.endpoints[shorten(a)] > 0 {
		v.moves++
	}
	if _, twice := v.changed[a]; twice { // the second change reverts the first
		delete(v.changed, a)
		return
	}
	v.changed[a] = struct{}{}
}

// takeChanged returns the addresses of endpoints that became virtual, or are no longer virtual, since the previous
// call.
func (v *virtual) takeChanged() map[netip.Addr]struct{} {
	changed := v.changed
	v.changed = map[netip.Addr]struct{}{}
	maps.DeleteFunc(changed, func(a netip.Addr, _ struct{}) bool { return v.endpoints[shorten(a)] == 0 })
	return changed
}

// shortAddr identifies an IPv4 address. Several IPv6 addresses may share a value. If so, a search for the Services with an endpoint at one of them may
// find none.
type shortAddr uint32

func shorten(a netip.Addr) (short shortAddr) {
	bytes := a.As16()
	for i := 0; i < len(bytes); i += 4 {
		short = short*0x9e3779b1 + shortAddr(binary.BigEndian.Uint32(bytes[i:]))
	}
	return short
}

func count[K comparable](at map[K]int32, a K, by int32) {
	if at[a] += by; at[a] == 0 {
		delete(at, a)
	}
}

func hasEndpoint(svc *model.Service, addrs map[netip.Addr]struct{}) bool {
	for _, slice := range svc.Slices {
		for i := range slice.Endpoints {
			if _, ok := addrs[slice.Endpoints[i].Addr]; ok {
				return true
			}
		}
	}
	return false
}
