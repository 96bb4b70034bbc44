package compile

import (
	"encoding/binary"
	"errors"
	"maps"
	"net/netip"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// A virtual address is one that this node has on kube-ipvs0, for whichever Service. No endpoint can be there: IPVS would hand its
// packets to the node itself, where they meet a process of the node, or nobody.
//
// So a Service may be compiled otherwise because another one's address came or went. An index of all endpoints would find it at
// once, and cost 10 MB in a large cluster; but endpoints seldom are near the addresses of Services. It is enough to know how many
// of both are in each range, and to search all Services when a virtual address comes or goes in a range that has endpoints.
type virtual struct {
	// places counts, for each virtual address, those that are served there.
	places map[netip.Addr]int
	// flipped are the addresses that became or ceased to be virtual while claims were replaced.
	flipped map[netip.Addr]struct{}
	ranges  map[addrRange]*population
}

// addrRange is a range by its leading bits, which are as many as those of one node's pods where nobody configures that: 24 or 64.
// (What both families have in common there are addresses that nobody uses.)
type addrRange uint64

// population counts what is in a range.
type population struct{ endpoints, virtual int }

func newVirtual() virtual {
	return virtual{places: map[netip.Addr]int{}, flipped: map[netip.Addr]struct{}{}, ranges: map[addrRange]*population{}}
}

func rangeOf(a netip.Addr) addrRange {
	if a.Is4() {
		bytes := a.As4()
		return addrRange(binary.BigEndian.Uint32(bytes[:]) >> 8)
	}
	bytes := a.As16()
	return addrRange(binary.BigEndian.Uint64(bytes[:8]))
}

// has says whether an address is virtual. Almost every endpoint's range says no.
func (v *virtual) has(a netip.Addr) bool {
	p := v.ranges[rangeOf(a)]
	return p != nil && p.virtual > 0 && v.places[a] > 0
}

func (v *virtual) nearEndpoint(a netip.Addr) bool {
	p := v.ranges[rangeOf(a)]
	return p != nil && p.endpoints > 0
}

func (v *virtual) count(a netip.Addr, endpoints, virtual int) {
	r := rangeOf(a)
	p := v.ranges[r]
	if p == nil {
		p = &population{}
		v.ranges[r] = p
	}
	p.endpoints += endpoints
	p.virtual += virtual
	if *p == (population{}) {
		delete(v.ranges, r)
	}
}

// countEndpoints adds (or with -1 takes away) the endpoints of a Service.
func (v *virtual) countEndpoints(svc *model.Service, by int) {
	if svc == nil {
		return
	}
	for _, slice := range svc.Slices {
		for i := range slice.Endpoints {
			v.count(slice.Endpoints[i].Addr, by, 0)
		}
	}
}

// replace notes that one place at an address was bound, and is.
func (v *virtual) replace(a netip.Addr, was, is bool) {
	switch {
	case is && !was:
		if v.places[a]++; v.places[a] == 1 {
			v.flip(a, +1)
		}
	case was && !is:
		if v.places[a]--; v.places[a] == 0 {
			delete(v.places, a)
			v.flip(a, -1)
		}
	}
}

// flip notes that an address is another than it was: twice in one update, and it is what it was before.
func (v *virtual) flip(a netip.Addr, by int) {
	v.count(a, 0, by)
	if _, again := v.flipped[a]; again {
		delete(v.flipped, a)
		return
	}
	v.flipped[a] = struct{}{}
}

// takeFlipped returns the addresses that flipped since the last time and may be those of endpoints.
func (v *virtual) takeFlipped() map[netip.Addr]struct{} {
	flipped := v.flipped
	v.flipped = map[netip.Addr]struct{}{}
	maps.DeleteFunc(flipped, func(a netip.Addr, _ struct{}) bool { return !v.nearEndpoint(a) })
	return flipped
}

// concernEndpoints adds the Services with an endpoint at one of the addresses.
func (c *Cluster) concernEndpoints(addrs map[netip.Addr]struct{}, concerned map[model.ServiceID]struct{}) {
	if len(addrs) == 0 {
		return
	}
	for id, s := range c.services {
		if _, already := concerned[id]; !already && hasEndpoint(s.service, addrs) {
			concerned[id] = struct{}{}
		}
	}
}

// hasEndpoint says whether a Service has an endpoint at one of the addresses.
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

var errBoundHere = errors.New("is bound on this node for a Service: packets to it would never leave the node")

// checkEndpoint returns an error for an address that no endpoint can have here.
func (n *nodeContext) checkEndpoint(a netip.Addr) error {
	if n.virtual.has(a) {
		return errBoundHere
	}
	return inet.CheckUnicast(a)
}
