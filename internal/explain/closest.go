package explain

import (
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// Closest is the base whose rules the kernel has most of, the first of equals. Where no agent answers it tells one that serves
// beside another proxy, and has chains of its own for it, from one that serves alone.
func (k *Kernel) Closest(first view.Base, others ...view.Base) view.Base {
	closest := first
	for _, b := range others {
		if k.has(b) > k.has(closest) {
			closest = b
		}
	}
	return closest
}

// has counts the rules of a base that are there.
func (k *Kernel) has(b view.Base) int {
	count := 0
	for _, family := range inet.Families {
		for _, r := range b.Rules {
			if r.Family == family.String() && k.hasRule(family, r) {
				count++
			}
		}
	}
	return count
}

func (k *Kernel) hasRule(f inet.Family, r view.Rule) bool {
	there := k.State.Rules[f].Chains
	if r.Jump {
		there = k.State.Rules[f].Jumps
	}
	return slices.Contains(there[kernel.ChainID{Table: r.Table, Chain: r.Chain}], r.Tag)
}
