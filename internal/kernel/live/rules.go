package live

import (
	"context"
	"errors"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/ipset"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/wire"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

type members func(ctx context.Context, prefix string) (map[string]kernel.Set, map[string]map[kernel.Element]struct{}, error)

type sets interface {
	applier
	LookupMembers(context.Context, []kernel.Member) (map[kernel.Member]struct{}, error)
	Stats() nlbatch.Stats
	Close() error
}

// openSets also returns two functions that list the sets. The second is for callers that list them repeatedly.
func openSets(cfg Config) (sets, members, members, error) {
	if cfg.Mode.RulesInNFTables() {
		b, err := nft.New(cfg.Families, cfg.Chains)
		if err != nil {
			return nil, nil, nil, err
		}
		return b, b.ReadSets, b.ListSets, nil
	}
	b, err := ipset.New()
	if err != nil {
		return nil, nil, nil, err
	}
	return b, b.Read, b.Follow().Read, nil
}

// summaries reads summaries of sets and rules. Untouched begins a summary; if it returns false, Summarize completes it.
type summaries interface {
	Untouched(context.Context) (bool, error)
	// Summarize fills in the sets, members and rules.
	Summarize(context.Context, kernel.Sample, *kernel.Summary) error
	// Generation returns the generation of nftables that the last complete summary has seen.
	Generation() uint32
	Stats() nlbatch.Stats
	Close() error
}

func openSummaries(cfg Config, tables *iptables.Backend, writes *wire.Writes) (summaries, error) {
	if cfg.Mode.RulesInNFTables() {
		s, err := nft.NewSummarizer(cfg.Families, cfg.Chains, cfg.SetPrefix, writes)
		if err != nil {
			return nil, err
		}
		return nftSummaries{s}, nil
	}
	s := &tableSummaries{prefix: cfg.SetPrefix}
	var errs [2]error
	s.ipset, errs[0] = ipset.New()
	s.rules, errs[1] = tables.Summarizer()
	if err := errors.Join(errs[:]...); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

type nftSummaries struct{ *nft.Summarizer }

// Summarize always counts members, because nftables knows their number.
func (s nftSummaries) Summarize(ctx context.Context, _ kernel.Sample, read *kernel.Summary) (err error) {
	read.Sets, read.Rules, err = s.Summarizer.Summarize(ctx)
	return err
}

// visitedEach is how many members and hash buckets the kernel may visit per summary, on average. mostWithout is how many summaries in a row may
// skip counting, even if the average is then higher.
const (
	visitedEach = 1024
	mostWithout = 29
)

type tableSummaries struct {
	prefix string
	ipset  *ipset.Backend
	rules  *iptables.Summarizer
	// withoutSets is the number of summaries until the next one with sets.
	withoutSets int
}

func (s *tableSummaries) Untouched(context.Context) (bool, error) { return false, nil }

// Summarize counts the members of sets only from time to time, because the kernel visits each bucket and each member to count them.
func (s *tableSummaries) Summarize(ctx context.Context, sample kernel.Sample, read *kernel.Summary) error {
	var errs [2]error
	if s.withoutSets--; s.withoutSets < 0 || sample.Count {
		var visited int
		read.Sets, visited, errs[0] = s.ipset.Summaries(ctx, s.prefix)
		s.withoutSets = min(visited/visitedEach, mostWithout)
	} else {
		read.Members, errs[0] = s.ipset.LookupMembers(ctx, sample.Members)
	}
	read.Rules, errs[1] = s.rules.Read(ctx)
	return errors.Join(errs[:]...)
}

func (s *tableSummaries) Generation() uint32 { return s.rules.Generation() }

func (s *tableSummaries) Stats() nlbatch.Stats { return add(s.ipset.Stats(), s.rules.Stats()) }

func (s *tableSummaries) Close() error {
	var errs []error
	if s.ipset != nil {
		errs = append(errs, s.ipset.Close())
	}
	if s.rules != nil {
		errs = append(errs, s.rules.Close())
	}
	return errors.Join(errs...)
}
