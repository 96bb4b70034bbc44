package explain

import (
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// Closest returns the base whose rules match the kernel best. If there is a tie, it prefers first. The agent uses
// different chains beside another proxy. If no agent responds, the result shows which chains it used.
func (k *Kernel) Closest(first view.Base, others ...view.Base) view.Base {
	closest := first
	for _, b := range others {
		if k.has(b) > k.has(closest) {
			closest = b
		}
	}
	return closest
}

// has counts the rules of a base that exist in the kernel.
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
