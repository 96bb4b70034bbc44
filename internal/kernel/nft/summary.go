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

// Summarizer tells whether the table may have changed. While the kernel's generation number is the same, nothing has.
type Summarizer struct {
	*Backend
	prefix     string
	generation uint32
	sets       map[string]kernel.SetSummary
	rules      map[inet.Family]uint64
	// names are the sets at the last look at all of them, when that many objects were in the table.
	names []string
	used  uint32
	// countAfter is when sets may be counted again.
	countAfter time.Time
}

// NewSummarizer opens one for these chains, and for the sets whose names start with prefix.
func NewSummarizer(families []inet.Family, chains []kernel.ChainID, prefix string) (*Summarizer, error) {
	b, err := New(families, chains)
	return &Summarizer{Backend: b, prefix: prefix}, err
}

// Summarize returns the sets of kernel.Summary, and its values for rules.
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

// countSets asks for the numbers of members. Older kernels do not have them, so there they are counted, if wanted.
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

// findSets lists the sets again if there may be others. The maps of a Balancer are many.
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

// count returns the number of elements of a set, or a map, of which the kernel answered this.
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
	// countShare bounds the time for counting: after it, nothing is counted for this many times as long as it took.
	countShare = 100
	// countFree is a time for which that is not worthwhile.
	countFree = 5 * time.Millisecond
)

// countAgain returns when to count again after it took some time. Until then, it is as before.
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

// sumRules hashes the chains and rules of each family: which there are, in which order. A rule does not change without a new handle. The
// netfilter header of a message is not part of it: it has the generation, which every change of another table changes.
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
