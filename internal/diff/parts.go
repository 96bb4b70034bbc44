package diff

import (
	"net/netip"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Parts splits a plan that only adds objects on a node with complete rules, so that the first addresses are served before the last ones are
// started. Within a part, and so for every address, the operations have the plan's order (I7). Each part has at least size operations,
// except the last one. All other plans stay whole.
func (p Plan) Parts(size int) []Plan {
	if p.Len() <= size || !p.onlyAdds() {
		return []Plan{p}
	}
	part, last := p.partOf(size)
	parts := make([]Plan, last+1)
	for _, phase := range p.Phases {
		divided := make([][]kernel.Op, len(parts))
		for _, op := range phase.Ops {
			i := part[addressOf(op)]
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

// onlyAdds reports whether the plan neither changes nor removes anything, and adds nothing that all Services depend on.
func (p Plan) onlyAdds() bool {
	for _, phase := range p.Phases {
		for _, op := range phase.Ops {
			if op.Verb != kernel.Create || !addressOf(op).IsValid() {
				return false
			}
		}
	}
	return true
}

// partOf assigns addresses with virtual servers to parts, in the order of the plan. Entries of other addresses are in the first part:
// entries about endpoints must be complete before any virtual server has the endpoint.
func (p Plan) partOf(size int) (part map[netip.Addr]int, last int) {
	ops := map[netip.Addr]int{}
	var served []netip.Addr
	for _, phase := range p.Phases {
		for _, op := range phase.Ops {
			addr := addressOf(op)
			ops[addr]++
			if _, isServer := op.Object.(kernel.Server); isServer {
				served = append(served, addr)
			}
		}
	}
	part = map[netip.Addr]int{}
	filled := 0
	for _, addr := range served {
		if _, assigned := part[addr]; assigned {
			continue
		}
		if filled >= size {
			last, filled = last+1, 0
		}
		part[addr] = last
		filled += ops[addr]
	}
	return part, last
}

// addressOf is the destination address of the object's packets, or the endpoint's address for an entry about an endpoint. Objects that all
// Services depend on have none.
func addressOf(op kernel.Op) netip.Addr {
	switch o := op.Object.(type) {
	case kernel.Member:
		return o.Element.Addr
	case kernel.Server:
		return o.Key.Addr.Addr()
	case kernel.ServerDestination:
		return o.Server.Addr.Addr()
	case kernel.BoundAddress:
		return o.Addr
	}
	return netip.Addr{}
}
