package view

import (
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// BaseOf converts the base of the wanted state.
func BaseOf(b want.Base, masqueradeBit uint8) Base {
	out := Base{Sysctls: []Sysctl{}, Sets: []string{}, Rules: []Rule{}, Ledgers: []string{}, MasqueradeMark: 1 << masqueradeBit}
	for _, s := range b.Sysctls {
		out.Sysctls = append(out.Sysctls, Sysctl{s.Name, s.Value})
	}
	for _, s := range b.Sets {
		out.Sets = append(out.Sets, s.Name)
	}
	for _, family := range inet.Families {
		if name := b.Ledger[family]; name != "" {
			out.Ledgers = append(out.Ledgers, name)
		}
	}
	for _, set := range b.Rulesets {
		for _, j := range set.Jumps {
			out.Rules = append(out.Rules, ruleOf(set.Family, j.ChainID, j.Rule, true))
		}
		for _, c := range set.Chains {
			for _, r := range c.Rules {
				out.Rules = append(out.Rules, ruleOf(set.Family, c.ChainID, r, false))
			}
		}
	}
	return out
}

func ruleOf(f inet.Family, at kernel.ChainID, r kernel.Rule, jump bool) Rule {
	return Rule{Family: f.String(), Table: at.Table, Chain: at.Chain, Jump: jump, Tag: r.Tag(), Rule: r.String(), Why: r.Why}
}

// JumpsOnly returns the base without the rules in the agent's own chains. The result is the same for every
// configuration of this version.
func (b Base) JumpsOnly() Base {
	b.Rules = slices.DeleteFunc(slices.Clone(b.Rules), func(r Rule) bool { return !r.Jump })
	return b
}
