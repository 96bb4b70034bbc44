package iptables

import (
	"context"
	"fmt"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Listing is all that iptables' tables hold, other people's rules too, for somebody who wants to follow a packet.
type Listing struct {
	// Policies are what built-in chains do with packets that no rule judges.
	Policies map[kernel.ChainID]string
	// Rules of each chain in order. A chain without rules has an entry.
	Rules map[kernel.ChainID][]SavedRule
}

// Words is the rule as arguments of the iptables command.
func (r SavedRule) Words() []string { return r.words() }

// String prints the rule as save does, with its table.
func (r SavedRule) String() string { return fmt.Sprintf("-t %s -A %s %s", r.Table, r.Chain, r.Spec) }

// allTables are those that packets for virtual servers pass.
var allTables = map[string]bool{"raw": true, "mangle": true, "nat": true, "filter": true, "security": true}

// List reads the rules of every family.
func (b *Backend) List(ctx context.Context) (map[inet.Family]Listing, error) {
	listings := make(map[inet.Family]Listing, len(b.families))
	for _, f := range b.families {
		out, err := b.runner.run(ctx, "", b.variant.command(f, "-save"))
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

func (s saved) listing(text string) Listing {
	l := Listing{Policies: parsePolicies(text), Rules: map[kernel.ChainID][]SavedRule{}}
	for id := range s.chains {
		l.Rules[id] = nil
	}
	for _, r := range s.rules {
		l.Rules[r.ChainID] = append(l.Rules[r.ChainID], r)
	}
	return l
}

// parsePolicies reads lines such as ":INPUT ACCEPT [0:0]". Chains that are not built in have "-".
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
