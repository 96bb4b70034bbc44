package explain

import (
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// Closest returns the base with the most rules in the kernel, or the first of several. If no agent responds, this distinguishes
// an agent beside another proxy, which has its own chains, from an agent without another proxy.
func (k *Kernel) Closest(first view.Base, others ...view.Base) view.Base {
	closest := first
	for _, b := range others {
		if k.has(b) > k.has(closest) {
			closest = b
		}
	}
	return closest
}

// has counts the rules of a base that the kernel has.
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
