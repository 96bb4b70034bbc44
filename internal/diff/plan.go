package diff

import (
	"cmp"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Plan holds operations in order.
type Plan struct {
	// Phases with operations, in order. A phase starts when the previous one has ended.
	Phases []Phase
}

// Phase is a group of operations that do not depend on each other.
type Phase struct {
	Name string
	Ops  []kernel.Op
}

// Len counts the operations.
func (p Plan) Len() int {
	n := 0
	for _, phase := range p.Phases {
		n += len(phase.Ops)
	}
	return n
}

// Ops lists all operations in order.
func (p Plan) Ops() []kernel.Op {
	ops := make([]kernel.Op, 0, p.Len())
	for _, phase := range p.Phases {
		ops = append(ops, phase.Ops...)
	}
	return ops
}

// builder collects operations and sorts them into phases.
type builder struct {
	seed   string
	phases [numPhases][]kernel.Op
}

func (b *builder) add(at phaseIndex, verb kernel.Verb, object kernel.Object) {
	b.phases[at] = append(b.phases[at], kernel.Op{Verb: verb, Object: object})
}

func (b *builder) plan() Plan {
	var p Plan
	for i, ops := range b.phases {
		if len(ops) == 0 {
			continue
		}
		slices.SortStableFunc(ops, compareOps)
		p.Phases = append(p.Phases, Phase{Name: phaseNames[i], Ops: ops})
	}
	return p
}

// compareOps orders the operations of a phase, which are of one kind, so that equal input gives equal plans.
func compareOps(a, b kernel.Op) int {
	switch x := a.Object.(type) {
	case kernel.Member:
		return x.Compare(b.Object.(kernel.Member))
	case kernel.Server:
		return x.Key.Compare(b.Object.(kernel.Server).Key)
	case kernel.ServerDestination:
		return x.Server.Compare(b.Object.(kernel.ServerDestination).Server) // those of one server are in order already
	case kernel.BoundAddress:
		return x.Addr.Compare(b.Object.(kernel.BoundAddress).Addr)
	case kernel.Set:
		return cmp.Compare(x.Name, b.Object.(kernel.Set).Name)
	}
	return 0 // sysctls, the device and rulesets keep the order in which they are declared
}
