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
	sets, err := s.countSets(ctx)
	if err != nil {
		return nil, nil, err
	}
	rules, err := s.sumRules(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("read rules: %w", err)
	}
	s.generation, s.rules, s.sets = generation, rules, sets
	return s.sets, s.rules, nil
}

// countSets asks for the numbers of members. Older kernels do not have them, so there they are counted.
func (s *Summarizer) countSets(ctx context.Context) (map[string]kernel.SetSummary, error) {
	payloads, err := s.dump(ctx, unix.NFT_MSG_GETSET, nlbatch.AppendString(nil, unix.NFTA_SET_TABLE, Table))
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("read sets: %w", err)
	}
	sets := map[string]kernel.SetSummary{}
	for _, p := range payloads {
		table, set, err := decodeSet(p)
		if err != nil {
			return nil, fmt.Errorf("read sets: %w", err)
		}
		if table != Table || !strings.HasPrefix(set.Name, s.prefix) {
			continue
		}
		n, known, err := memberCount(p)
		if err == nil && !known {
			n, err = s.countMembers(ctx, set.Name)
		}
		if err != nil {
			return nil, fmt.Errorf("count set %s: %w", set.Name, err)
		}
		sets[set.Name] = kernel.SetSummary{Set: set, Members: n}
	}
	return sets, nil
}

func memberCount(set []byte) (n int, known bool, err error) {
	err = eachAttr(set, func(typ uint16, v []byte) error {
		if typ != setCount {
			return nil
		}
		known = true
		count, err := nlbatch.BigUint32(v)
		n = int(count)
		return err
	})
	return n, known, err
}

func (s *Summarizer) countMembers(ctx context.Context, set string) (n int, err error) {
	payloads, err := s.dump(ctx, unix.NFT_MSG_GETSETELEM, elementsOf(set))
	for _, p := range payloads {
		err = errors.Join(err, eachAttr(p, func(typ uint16, v []byte) error {
			if typ != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
				return nil
			}
			return nlbatch.EachAttr(v, func(uint16, []byte) error { n++; return nil })
		}))
	}
	return n, err
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
