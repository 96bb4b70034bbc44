package nft

import (
	"context"
	"fmt"
	"hash"
	"hash/fnv"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/balance"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/wire"
)

// Summarizer detects possible changes to the table by other programs. If the generation number is unchanged, or only the agent has changed
// it, there are none.
type Summarizer struct {
	*Backend
	writes     *wire.Writes
	prefix     string
	generation uint32 // of the last complete summary, and of the agent's writes since then
	complete   bool
	// names contains the sets of the last complete list, and used is the number of objects in the table at that time.
	names []string
	used  uint32
}

// NewSummarizer opens a Summarizer for these chains, and for the sets whose names start with prefix. The agent notes its own writes.
func NewSummarizer(families []inet.Family, chains []kernel.ChainID, prefix string, writes *wire.Writes) (*Summarizer, error) {
	b, err := New(families, chains)
	return &Summarizer{Backend: b, prefix: prefix, writes: writes}, err
}

// Untouched reports whether only the agent has changed nftables since the last complete summary. After an error, it forgets that summary.
func (s *Summarizer) Untouched(ctx context.Context) (bool, error) {
	generation, err := s.conn.Generation(ctx)
	if err != nil {
		s.complete = false
		return false, err
	}
	untouched := s.writes.Only(s.generation, generation) && s.complete
	s.generation, s.complete = generation, untouched
	return untouched, nil
}

// Generation returns the generation that the last summary has seen.
func (s *Summarizer) Generation() uint32 { return s.generation }

// Summarize returns the sets and the hashes of rules for a kernel.Summary.
func (s *Summarizer) Summarize(ctx context.Context) (map[string]kernel.SetSummary, map[inet.Family]uint64, error) {
	sets, err := s.countSets(ctx)
	if err != nil {
		return nil, nil, err
	}
	rules, err := s.sumRules(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("read rules: %w", err)
	}
	s.complete = true
	return sets, rules, nil
}

func (s *Summarizer) countSets(ctx context.Context) (map[string]kernel.SetSummary, error) {
	if err := s.findSets(ctx); err != nil {
		return nil, fmt.Errorf("read sets: %w", err)
	}
	counted, err := s.conn.Count(ctx, s.names)
	sets := map[string]kernel.SetSummary{}
	for name, set := range counted {
		sets[name] = kernel.SetSummary{Set: setOf(set), Members: set.Elements}
	}
	return sets, err
}

// findSets lists the sets if the number of objects in the table has changed. This avoids most listings, which are slow because a
// Balancer has many maps.
func (s *Summarizer) findSets(ctx context.Context) error {
	t, err := s.conn.Table(ctx)
	if err != nil || s.names != nil && t.Used == s.used {
		return err
	}
	all, err := s.conn.Sets(ctx)
	if err != nil {
		return err
	}
	s.names, s.used = []string{}, t.Used
	for name := range all {
		if strings.HasPrefix(name, s.prefix) {
			s.names = append(s.names, name)
		}
	}
	return nil
}

// sumRules hashes the chains and rules of each family, in order. A changed rule has a new handle. The hash skips the netfilter header of
// each message, because the generation number in it also changes when other tables change.
func (s *Summarizer) sumRules(ctx context.Context) (map[inet.Family]uint64, error) {
	chains, err := s.readable(ctx)
	if err != nil {
		return nil, err
	}
	changed, err := s.altered(ctx, chains)
	if err != nil {
		return nil, err
	}
	sums := map[inet.Family]hash.Hash64{}
	for _, f := range s.families {
		sums[f] = fnv.New64a()
		_, _ = fmt.Fprintln(sums[f], changed.table.Dormant())
	}
	for _, c := range chains {
		f := familyOf(c.Name)
		_, _ = fmt.Fprintln(sums[f], c)
		rules, err := s.conn.Rules(ctx, wire.Chain(c.Name))
		if err != nil {
			return nil, err
		}
		for _, r := range rules {
			_, _ = sums[f].Write(r.Attributes)
		}
	}
	values := map[inet.Family]uint64{}
	for f, sum := range sums {
		values[f] = sum.Sum64()
	}
	return values, nil
}

// familyOf returns the family of a chain for rules, or of a chain that all frontends share.
func familyOf(name string) inet.Family {
	for _, f := range inet.Families {
		if name == balance.Entrance(f) {
			return f
		}
	}
	if w, base := wantedBases[name]; base {
		return w.family
	}
	f, _, _ := parseChain(name)
	return f
}
