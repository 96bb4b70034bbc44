package diff

import (
	"cmp"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Plan is a list of operations in order.
type Plan struct {
	// A phase starts after the previous phase has ended.
	Phases []Phase
	// AtZero contains the destinations that start or stop draining without an operation: their weight is already 0, and only whether they are
	// wanted has changed.
	AtZero []kernel.ServerDestination
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

// All iterates over all operations in order.
func (p Plan) All(yield func(kernel.Op) bool) {
	for _, phase := range p.Phases {
		for _, op := range phase.Ops {
			if !yield(op) {
				return
			}
		}
	}
}

// Has reports whether the plan has an operation of the given kind.
func (p Plan) Has(is func(kernel.Op) bool) bool {
	return slices.ContainsFunc(p.Phases, func(phase Phase) bool { return slices.ContainsFunc(phase.Ops, is) })
}

// Without returns the plan without the operations for which drops returns true.
func (p Plan) Without(drops func(kernel.Op) bool) (left Plan) {
	left.AtZero = p.AtZero
	for _, phase := range p.Phases {
		phase.Ops = slices.DeleteFunc(slices.Clone(phase.Ops), drops)
		if len(phase.Ops) > 0 {
			left.Phases = append(left.Phases, phase)
		}
	}
	return left
}

type builder struct {
	seed   string
	phases [numPhases][]kernel.Op
	atZero []kernel.ServerDestination
	// drain counts the destinations of each Service that start to drain.
	drain map[want.ServiceID]int
	// added and entry are reused for the new destinations of each virtual server.
	added []kernel.Destination
	entry entryOrder
}

func (b *builder) add(at phaseIndex, verb kernel.Verb, object kernel.Object) {
	b.phases[at] = append(b.phases[at], kernel.Op{Verb: verb, Object: object})
}

func (b *builder) plan() Plan {
	p := Plan{AtZero: b.atZero}
	for i, ops := range b.phases {
		if len(ops) == 0 {
			continue
		}
		sortOps(ops)
		p.Phases = append(p.Phases, Phase{Name: phaseNames[i], Ops: ops})
	}
	return p
}

// sortOps sorts the operations of a phase, so that equal input gives equal plans. All operations are of the same kind and concern
// different objects. Sysctls, the device and rulesets keep their order of declaration. Destinations keep the order of their virtual
// servers.
func sortOps(ops []kernel.Op) {
	switch ops[0].Object.(type) {
	case kernel.Member:
		sortBy(ops, kernel.Member.Compare)
	case kernel.Server:
		sortBy(ops, func(a, b kernel.Server) int { return a.Key.Compare(b.Key) })
	case kernel.BoundAddress:
		sortBy(ops, func(a, b kernel.BoundAddress) int { return a.Addr.Compare(b.Addr) })
	case kernel.Set:
		sortBy(ops, func(a, b kernel.Set) int { return cmp.Compare(a.Name, b.Name) })
	}
}

// sortBy first checks whether the operations need sorting, because large plans are usually already sorted.
func sortBy[T kernel.Object](ops []kernel.Op, compare func(a, b T) int) {
	compareOps := func(a, b kernel.Op) int { return compare(a.Object.(T), b.Object.(T)) }
	if !slices.IsSortedFunc(ops, compareOps) {
		slices.SortFunc(ops, compareOps)
	}
}
