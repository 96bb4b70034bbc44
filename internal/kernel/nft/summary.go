package nft

import (
	"context"
	"errors"
	"fmt"
	"hash"
	"hash/fnv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// Summarizer detects possible changes of the table. If the generation number is unchanged, nothing has changed.
type Summarizer struct {
	*Backend
	prefix     string
	generation uint32
	sets       map[string]kernel.SetSummary
	rules      map[inet.Family]uint64
	// names are the sets of the last complete list, when the table had used objects.
	names []string
	used  uint32
	// countAfter is when sets may be counted again.
	countAfter time.Time
}

// NewSummarizer opens a Summarizer for these chains, and for the sets whose names start with prefix.
func NewSummarizer(families []inet.Family, chains []kernel.ChainID, prefix string) (*Summarizer, error) {
	b, err := New(families, chains)
	return &Summarizer{Backend: b, prefix: prefix}, err
}

// Summarize returns the sets and the hashes of rules for a kernel.Summary.
func (s *Summarizer) Summarize(ctx context.Context) (map[string]kernel.SetSummary, map[inet.Family]uint64, error) {
	generation, err := s.readGeneration(ctx)
	if err != nil {
		return nil, nil, err
	}
	if s.rules != nil && generation == s.generation {
		return s.sets, s.rules, nil
	}
	began := time.Now()
	sets, err := s.countSets(ctx, !began.Before(s.countAfter))
	if err != nil {
		return nil, nil, err
	}
	s.countAfter = countAgain(began, time.Since(began), s.countAfter)
	rules, err := s.sumRules(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("read rules: %w", err)
	}
	s.generation, s.rules, s.sets = generation, rules, sets
	return s.sets, s.rules, nil
}

// countSets returns the number of members of each set. Older kernels do not report it; there, countSets lists the members if wanted is
// true.
func (s *Summarizer) countSets(ctx context.Context, wanted bool) (map[string]kernel.SetSummary, error) {
	if err := s.findSets(ctx); err != nil {
		return nil, fmt.Errorf("read sets: %w", err)
	}
	payloads, err := s.getSets(ctx, s.names)
	if err != nil {
		return nil, fmt.Errorf("read sets: %w", err)
	}
	sets := map[string]kernel.SetSummary{}
	for _, p := range payloads {
		_, set, err := decodeSet(p)
		if err != nil {
			return nil, fmt.Errorf("read sets: %w", err)
		}
		n, err := s.count(ctx, set.Name, p, wanted)
		if err != nil {
			return nil, fmt.Errorf("count set %s: %w", set.Name, err)
		}
		sets[set.Name] = kernel.SetSummary{Set: set, Members: n}
	}
	return sets, nil
}

// findSets lists the sets if the number of objects in the table has changed. It saves lists, because a Balancer has many maps.
func (s *Summarizer) findSets(ctx context.Context) error {
	t, err := s.table(ctx)
	if err != nil || s.names != nil && t.used == s.used {
		return err
	}
	all, err := s.Backend.sets(ctx)
	if err != nil {
		return err
	}
	s.names, s.used = []string{}, t.used
	for name := range all {
		if strings.HasPrefix(name, s.prefix) {
			s.names = append(s.names, name)
		}
	}
	return nil
}

// count returns the number of elements of a set or map. answer is the reply of the kernel to a look-up of the set.
func (b *Backend) count(ctx context.Context, name string, answer []byte, wanted bool) (int, error) {
	switch n, known, err := memberCount(answer); {
	case err != nil || known:
		return n, err
	case !wanted:
		return kernel.Uncounted, nil
	}
	return b.countElements(ctx, name)
}

const (
	// countShare limits the cost of counting: the pause after a count is this many times as long as the count took.
	countShare = 100
	// countFree is a duration of counting after which the agent need not wait.
	countFree = 5 * time.Millisecond
)

// countAgain returns when to count again, after counting began and took some time.
func countAgain(began time.Time, took time.Duration, before time.Time) time.Time {
	if took < countFree || began.Before(before) {
		return before
	}
	return began.Add(countShare * took)
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

func (b *Backend) countElements(ctx context.Context, set string) (n int, err error) {
	payloads, err := b.dump(ctx, unix.NFT_MSG_GETSETELEM, elementsOf(set))
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

// sumRules hashes the chains and rules of each family, in order. A rule does not change without a new handle. The hash skips the netfilter
// header of each message: its generation number also changes with other tables.
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
		_, _ = fmt.Fprintln(sums[f], changed.dormant())
	}
	for _, c := range chains {
		f := familyOf(c.name)
		_, _ = fmt.Fprintln(sums[f], c)
		payloads, err := s.Backend.rules(ctx, c.name)
		if err != nil {
			return nil, err
		}
		for _, p := range payloads {
			_, _ = sums[f].Write(p[min(len(p), nfgenHeaderLen):])
		}
	}
	values := map[inet.Family]uint64{}
	for f, sum := range sums {
		values[f] = sum.Sum64()
	}
	return values, nil
}
