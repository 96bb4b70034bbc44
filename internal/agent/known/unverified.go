package known

import (
	"iter"
	"maps"
	"net/netip"

	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Unverified contains the places where an operation has failed since the last read of the kernel. The operation may
// have taken effect although its reply was lost. If the agent relied on the known state there, a virtual server could
// outlive its owner record, or an address could outlive its virtual server. All operations at these places wait for
// the next full comparison. Skipped and refused operations have no effect, so nothing waits for them.
type Unverified map[netip.Addr]map[place]struct{}

// place is a virtual server, or a whole address if the port is 0. Objects of a whole address, such as an all-ports
// server, affect every virtual server there.
type place struct {
	addr     netip.Addr
	port     uint16
	protocol inet.Protocol
}

func serverPlace(key kernel.ServerKey) place {
	return newPlace(key.Addr.Addr(), key.Addr.Port(), key.Protocol)
}

func memberPlace(e kernel.Element) place { return newPlace(e.Addr, e.Port, e.Protocol) }

func newPlace(addr netip.Addr, port uint16, protocol inet.Protocol) place {
	if port == 0 {
		return place{addr: addr}
	}
	return place{addr, port, protocol}
}

func (u Unverified) addOp(op kernel.Op) {
	if p, ok := placeOf(op); ok {
		u.add(p)
	}
}

// Sets, rules and the device do not belong to a place. Operations that depend on them are skipped after a failure.
func placeOf(op kernel.Op) (place, bool) {
	switch o := op.Object.(type) {
	case kernel.Server:
		return serverPlace(o.Key), true
	case kernel.ServerDestination:
		return serverPlace(o.Server), true
	case kernel.Member:
		return memberPlace(o.Element), true
	case kernel.BoundAddress:
		return place{addr: o.Addr}, true
	}
	return place{}, false
}

func (u Unverified) add(p place) {
	if u[p.addr] == nil {
		u[p.addr] = map[place]struct{}{}
	}
	u[p.addr][p] = struct{}{}
}

// Add adds the places of touched objects that were not compared with the kernel.
func (u Unverified) Add(touched *want.Touched) {
	for p := range places(touched) {
		u.add(p)
	}
}

// Has reports whether the remembered state of a virtual server is unverified.
func (u Unverified) Has(key kernel.ServerKey) bool { return u.has(serverPlace(key)) }

func (u Unverified) has(p place) bool {
	at := u[p.addr]
	_, same := at[p]
	_, whole := at[place{addr: p.addr}]
	return same || whole || p.port == 0 && len(at) > 0
}

// Concerns reports whether a touched object must wait.
func (u Unverified) Concerns(touched *want.Touched) bool {
	if len(u) == 0 {
		return false
	}
	for p := range places(touched) {
		if u.has(p) {
			return true
		}
	}
	return false
}

// Withhold removes the objects that must wait. If a whole address must wait, all its virtual servers also wait for
// the next full read, because the address must be deleted before its last virtual server.
func (u Unverified) Withhold(touched *want.Touched) {
	if len(u) == 0 {
		return
	}
	for p := range places(touched) {
		if p.port == 0 && u.has(p) {
			u.add(p)
		}
	}
	maps.DeleteFunc(touched.Addresses, func(a netip.Addr, _ struct{}) bool { return u.has(place{addr: a}) })
	maps.DeleteFunc(touched.Servers, func(k kernel.ServerKey, _ struct{}) bool { return u.has(serverPlace(k)) })
	maps.DeleteFunc(touched.Members, func(m kernel.Member, _ struct{}) bool { return u.has(memberPlace(m.Element)) })
}

// Without removes the operations at these places from a plan.
func (u Unverified) Without(plan diff.Plan) diff.Plan {
	if len(u) == 0 {
		return plan
	}
	for op := range plan.All {
		if p, ok := placeOf(op); ok && p.port == 0 && u.has(p) {
			u.add(p)
		}
	}
	return plan.Without(func(op kernel.Op) bool {
		p, ok := placeOf(op)
		return ok && u.has(p)
	})
}

func places(touched *want.Touched) iter.Seq[place] {
	return func(yield func(place) bool) {
		for addr := range touched.Addresses {
			if !yield(place{addr: addr}) {
				return
			}
		}
		for key := range touched.Servers {
			if !yield(serverPlace(key)) {
				return
			}
		}
		for m := range touched.Members {
			if !yield(memberPlace(m.Element)) {
				return
			}
		}
	}
}
