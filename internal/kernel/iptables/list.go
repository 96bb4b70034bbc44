package iptables

import (
	"context"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// allTables lists the tables that packets to virtual servers traverse.
var allTables = map[string]bool{"raw": true, "mangle": true, "nat": true, "filter": true, "security": true}

// List reads the rules of every family.
func (b *Backend) List(ctx context.Context) (map[inet.Family]kernel.RuleListing, error) {
	listings := make(map[inet.Family]kernel.RuleListing, len(b.families))
	for _, f := range b.families {
		s, err := b.save(ctx, f, allTables)
		if err != nil {
			return nil, err
		}
		listings[f] = s.listing()
	}
	return listings, nil
}

func (s saved) listing() kernel.RuleListing {
	l := kernel.RuleListing{Policies: s.policies, Rules: map[kernel.ChainID][]kernel.SavedRule{}}
	for id := range s.chains {
		l.Rules[id] = nil
	}
	for _, r := range s.rules {
		l.Rules[r.ChainID] = append(l.Rules[r.ChainID], s.parse(r))
	}
	return l
}

// A target that is neither known nor a chain belongs to an extension.
func (s saved) parse(r kernel.SavedRule) kernel.SavedRule {
	r = ParseRule(r.ChainID, r.Spec)
	if to := target(r); to.Chain != "" && !s.chains[to] {
		r.Rule.Verdict = kernel.OtherTarget(to.Chain)
	}
	return r
}
