package nft

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// Summarizer tells whether the table may have changed. While the kernel's generation number is the same, nothing has.
type Summarizer struct {
	*Backend
	prefix     string
	generation uint32
	sets       map[string]kernel.SetSummary
	rules      map[inet.Family]uint64
}

// NewSummarizer opens one for the sets whose names start with prefix.
func NewSummarizer(families []inet.Family, prefix string) (*Summarizer, error) {
	b, err := New(families)
	return &Summarizer{Backend: b, prefix: prefix}, err
}

// Summarize returns the sets of kernel.Summary, and its values for rules.
func (s *Summarizer) Summarize(ctx context.Context) (map[string]kernel.SetSummary, map[inet.Family]uint64, error) {
	generation, err := s.readGeneration(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("read the generation of nftables: %w", err)
	}
	if s.rules != nil && generation == s.generation {
		return s.sets, s.rules, nil
	}
	sets, members, err := s.ReadSets(ctx, s.prefix)
	if err != nil {
		return nil, nil, err
	}
	rules, err := s.sumRules(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("read rules: %w", err)
	}
	s.generation, s.rules, s.sets = generation, rules, make(map[string]kernel.SetSummary, len(sets))
	for name, set := range sets {
		s.sets[name] = kernel.SetSummary{Set: set, Members: len(members[name])}
	}
	return s.sets, s.rules, nil
}

func (s *Summarizer) readGeneration(ctx context.Context) (generation uint32, err error) {
	answers, errs := s.conn.Get(ctx, []nlbatch.Request{request(unix.NFT_MSG_GETGEN, 0, nil)})
	if errs[0] != nil {
		return 0, errs[0]
	}
	for _, m := range answers[0] {
		err = errors.Join(err, eachAttr(m.Payload, func(typ uint16, v []byte) (err error) {
			if typ == unix.NFTA_GEN_ID {
				generation, err = nlbatch.BigUint32(v)
			}
			return err
		}))
	}
	return generation, err
}

// sumRules hashes the chains and rules of each family: which there are, in which order. A rule does not change without a new handle.
func (s *Summarizer) sumRules(ctx context.Context) (map[inet.Family]uint64, error) {
	chains, err := s.chains(ctx)
	if err != nil {
		return nil, err
	}
	payloads, err := s.dump(ctx, unix.NFT_MSG_GETRULE, nlbatch.AppendString(nil, unix.NFTA_RULE_TABLE, Table))
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, err
	}
	sums := map[inet.Family]uint64{}
	for _, f := range s.families {
		sum, suffix := fnv.New64a(), fmt.Sprintf("-%d", f)
		for _, name := range chains {
			if strings.HasSuffix(name, suffix) {
				_, _ = fmt.Fprintln(sum, name)
			}
		}
		for _, p := range payloads {
			if _, chain, _, err := decodeRule(p); err != nil || strings.HasSuffix(chain, suffix) {
				_, _ = sum.Write(p)
			}
		}
		sums[f] = sum.Sum64()
	}
	return sums, nil
}
