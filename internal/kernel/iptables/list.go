package iptables

import (
	"context"
	"fmt"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// allTables are the tables that packets to virtual servers traverse.
var allTables = map[string]bool{"raw": true, "mangle": true, "nat": true, "filter": true, "security": true}

// List reads the rules of every family.
func (b *Backend) List(ctx context.Context) (map[inet.Family]kernel.RuleListing, error) {
	listings := make(map[inet.Family]kernel.RuleListing, len(b.families))
	for _, f := range b.families {
		out, err := b.runner.save(ctx, b.variant, f)
		if err != nil {
			return nil, fmt.Errorf("list %s rules: %w", f, explainProcess(err))
		}
		s, err := parseSave(out.stdout, allTables)
		if err != nil {
			return nil, fmt.Errorf("list %s rules: %w", f, err)
		}
		listings[f] = s.listing(out.stdout)
	}
	return listings, nil
}

func (s saved) listing(text string) kernel.RuleListing {
	l := kernel.RuleListing{Policies: parsePolicies(text), Rules: map[kernel.ChainID][]kernel.SavedRule{}}
	for id := range s.chains {
		l.Rules[id] = nil
	}
	for _, r := range s.rules {
		l.Rules[r.ChainID] = append(l.Rules[r.ChainID], ParseRule(r.ChainID, r.Spec))
	}
	return l
}

// parsePolicies reads lines such as ":INPUT ACCEPT [0:0]". User-defined chains have "-" as the policy.
func parsePolicies(text string) map[kernel.ChainID]string {
	policies := map[kernel.ChainID]string{}
	table := ""
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		switch {
		case strings.HasPrefix(line, "*"):
			table = strings.TrimSpace(line[1:])
		case strings.HasPrefix(line, ":") && len(fields) > 1 && fields[1] != "-":
			policies[kernel.ChainID{Table: table, Chain: fields[0][1:]}] = fields[1]
		}
	}
	return policies
}
