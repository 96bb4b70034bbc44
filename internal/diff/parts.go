package diff

import (
	"cmp"
	"math"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Parts splits a plan into parts of at most size operations. The Services with the fewest operations come first. A Service therefore
// waits only for smaller changes, and on a new node, many Services are served early. The operations on each virtual server keep the
// plan's order (I7). The agent may stop after any part. A plan that changes objects on which all Services depend stays whole.
//
// waited counts how often Services were in a part that had to wait for the next sync. Half of the first part is reserved for the Services
// that have waited most often, so a stream of small changes cannot delay a Service forever.
func (p Plan) Parts(size int, w *Target, waited map[want.ServiceID]int) []Plan {
	if p.Len() <= size || p.changesBase(w) {
		return []Plan{p}
	}
	var parts []Plan
	for _, part := range p.divide(size, w, waited) {
		parts = append(parts, part.cut(size)...)
	}
	return parts
}

func (p Plan) changesBase(w *Target) bool {
	return p.Has(func(op kernel.Op) bool {
		m, isMember := op.Object.(kernel.Member)
		return !addressOf(op).IsValid() || isMember && isSeal(w, m)
	})
}

// A part exceeds size only if a single group does.
func (p Plan) divide(size int, w *Target, waited map[want.ServiceID]int) []Plan {
	part, last := newGrouping(p, w, waited).parts(size)
	parts := make([]Plan, last+1)
	for _, phase := range p.Phases {
		divided := make([][]kernel.Op, len(parts))
		for _, op := range phase.Ops {
			i := part(op)
			divided[i] = append(divided[i], op)
		}
		for i, ops := range divided {
			if len(ops) > 0 {
				parts[i].Phases = append(parts[i].Phases, Phase{Name: phase.Name, Ops: ops})
			}
		}
	}
	return parts
}

func (p Plan) cut(size int) []Plan {
	pieces, left := []Plan{{}}, size
	for _, phase := range p.Phases {
		for ops := phase.Ops; len(ops) > 0; {
			if left == 0 {
				pieces, left = append(pieces, Plan{}), size
			}
			n := min(left, len(ops))
			piece := &pieces[len(pieces)-1]
			piece.Phases = append(piece.Phases, Phase{Name: phase.Name, Ops: ops[:n]})
			ops, left = ops[n:], left-n
		}
	}
	return pieces
}

// grouping groups the operations whose order matters: all operations on a virtual server or, if one of them concerns its whole address, all
// operations on that address.
type grouping struct {
	want *Target
	// whole contains the addresses for which an operation concerns the whole address.
	whole map[netip.Addr]bool
	// groups keeps the plan's order. index contains the position of each group.
	groups []group
	index  map[kernel.ServerKey]int
	// endpoints contains the addresses of the endpoints that have an operation of their own, each with the groups that have a destination there.
	endpoints map[netip.Addr][]int
	// The last results are kept, because most operations follow another operation on the same virtual server.
	lastOwner lastLookup[want.ServiceID]
	lastGroup lastLookup[int]
}

// lastLookup is the last result of a lookup by place.
type lastLookup[T any] struct {
	place  kernel.ServerKey
	exists bool
	result T
}

func (l *lastLookup[T]) at(place kernel.ServerKey, look func(kernel.ServerKey) T) T {
	if !l.exists || l.place != place {
		l.place, l.exists, l.result = place, true, look(place)
	}
	return l.result
}

type group struct {
	ops int
	// service is the number of operations of the group's Service, or of the smallest Service if there are several.
	service int
	// waited counts how often one of the group's Services has waited.
	waited int
	turn   bool
	part   int
}

// rank is the smallest number of operations that completes one of the group's Services.
func (g *group) rank() int { return max(g.ops, g.service) }

func newGrouping(p Plan, w *Target, waited map[want.ServiceID]int) *grouping {
	g := &grouping{want: w, whole: map[netip.Addr]bool{}, index: map[kernel.ServerKey]int{}, endpoints: map[netip.Addr][]int{}}
	services := map[want.ServiceID]int{}
	for op := range p.All {
		if key := placeOf(op); key.Addr.Port() == 0 || removesServer(op) && w.HasAddress(key.Addr.Addr()) {
			g.whole[key.Addr.Addr()] = true
		}
		if g.isAboutEndpoint(op) {
			g.endpoints[addressOf(op)] = nil
		}
		services[g.owner(op)]++
	}
	for op := range p.All {
		if g.isAboutEndpoint(op) {
			continue
		}
		i, owner := g.groupOf(op), g.owner(op)
		group := &g.groups[i]
		group.ops++
		group.service, group.waited = min(group.service, services[owner]), max(group.waited, waited[owner])
		if d, ok := op.Object.(kernel.ServerDestination); ok {
			if groups, exists := g.endpoints[d.Addr.Addr()]; exists {
				g.endpoints[d.Addr.Addr()] = append(groups, i)
			}
		}
	}
	return g
}

// If the address of a deleted virtual server stays bound, another virtual server must exist first.
func removesServer(op kernel.Op) bool {
	_, isServer := op.Object.(kernel.Server)
	return isServer && op.Verb == kernel.Delete
}

// takeTurns reserves half of a part for the smallest groups. The groups that have waited most often follow.
func takeTurns(order []*group, size int) []*group {
	small, filled := 0, 0
	for small < len(order) && filled+order[small].ops <= size/2 {
		filled += order[small].ops
		small++
	}
	longest := slices.SortedStableFunc(slices.Values(order[small:]), func(a, b *group) int { return cmp.Compare(b.waited, a.waited) })
	turns := 0
	for turns < len(longest) && longest[turns].waited > 0 && (turns == 0 || filled+longest[turns].ops <= size) {
		filled += longest[turns].ops
		longest[turns].turn = true
		turns++
	}
	others := slices.DeleteFunc(slices.Clone(order[small:]), func(g *group) bool { return g.turn })
	return slices.Concat(order[:small], longest[:turns], others)
}

// Waiting updates how often Services have waited: it adds one for each Service with operations in parts that had to wait.
func Waiting(left []Plan, w *Target, waited map[want.ServiceID]int) map[want.ServiceID]int {
	waiting := map[want.ServiceID]int{}
	for _, part := range left {
		for op := range part.All {
			id := w.ownerAt(placeOf(op))
			waiting[id] = waited[id] + 1
		}
	}
	return waiting
}

func (g *grouping) owner(op kernel.Op) want.ServiceID {
	return g.lastOwner.at(placeOf(op), g.want.ownerAt)
}

// ownerAt returns zero if the place no longer belongs to a Service.
func (t *Target) ownerAt(place kernel.ServerKey) want.ServiceID {
	if server := t.Server(place); server != nil {
		return server.Owner.Service
	}
	return want.ServiceID{}
}

// isAboutEndpoint reports whether the operation is on a set entry for an endpoint. Several virtual servers may share the endpoint.
func (g *grouping) isAboutEndpoint(op kernel.Op) bool {
	m, ok := op.Object.(kernel.Member)
	if !ok {
		return false
	}
	set, _ := g.want.Set(m.Set)
	return set.Type == kernel.HashIPPortIP
}

func (g *grouping) groupOf(op kernel.Op) int { return g.lastGroup.at(placeOf(op), g.groupAt) }

func (g *grouping) groupAt(key kernel.ServerKey) int {
	if addr := key.Addr.Addr(); g.whole[addr] {
		key = kernel.ServerKey{Addr: netip.AddrPortFrom(addr, 0)}
	}
	i, exists := g.index[key]
	if !exists {
		i = len(g.groups)
		g.index[key], g.groups = i, append(g.groups, group{service: math.MaxInt})
	}
	return i
}

// parts assigns the groups to parts. An entry for an endpoint is added before the endpoint becomes a destination of any virtual server, and
// removed last.
func (g *grouping) parts(size int) (part func(kernel.Op) int, last int) {
	order := make([]*group, len(g.groups))
	for i := range g.groups {
		order[i] = &g.groups[i]
	}
	slices.SortStableFunc(order, func(a, b *group) int { return cmp.Compare(a.rank(), b.rank()) })
	filled := 0
	for _, group := range takeTurns(order, size) {
		if filled > 0 && filled+group.ops > size && !group.turn {
			last, filled = last+1, 0
		}
		group.part = last
		filled += group.ops
	}
	first := map[netip.Addr]int{}
	for endpoint, groups := range g.endpoints {
		first[endpoint] = last
		for _, i := range groups {
			first[endpoint] = min(first[endpoint], g.groups[i].part)
		}
	}
	return func(op kernel.Op) int {
		if !g.isAboutEndpoint(op) {
			return g.groups[g.groupOf(op)].part
		}
		if part, written := first[addressOf(op)]; written && op.Verb != kernel.Delete {
			return part
		}
		return last
	}, last
}

// placeOf returns the virtual server that an operation affects. If the key has no port, the operation affects the whole address.
func placeOf(op kernel.Op) kernel.ServerKey {
	switch o := op.Object.(type) {
	case kernel.Member:
		return keyOf(o.Element)
	case kernel.Server:
		return o.Key
	case kernel.ServerDestination:
		return o.Server
	case kernel.BoundAddress:
		return kernel.ServerKey{Addr: netip.AddrPortFrom(o.Addr, 0)}
	}
	return kernel.ServerKey{}
}

// addressOf returns the destination address of the packets that the object affects, or the endpoint's address for an endpoint's entry.
// Objects that all Services depend on have no such address.
func addressOf(op kernel.Op) netip.Addr { return placeOf(op).Addr.Addr() }
