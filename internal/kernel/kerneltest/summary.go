package kerneltest

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Summarize implements Kernel. It always reads everything.
func (f *Fake) Summarize(ctx context.Context, sample kernel.Sample) (*kernel.Summary, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counts.Summaries++
	if err := errors.Join(ctx.Err(), f.faults.summary()); err != nil {
		return nil, fmt.Errorf("read summary: %w", err)
	}
	state := f.state()
	read := &kernel.Summary{
		Sets: map[string]kernel.SetSummary{}, Rules: map[inet.Family]uint64{}, Sysctls: state.Sysctls, Servers: map[kernel.ServerKey]kernel.ObservedServer{},
		IPv4Servers: f.marked,
	}
	for key := range state.Servers {
		if key.Family() == inet.IPv4 {
			read.IPv4Servers++
		}
	}
	for _, key := range sample.Servers {
		if s, exists := state.Servers[key]; exists {
			read.Servers[key] = s
		}
	}
	for name, s := range f.sets {
		if strings.HasPrefix(name, SetPrefix) {
			read.Sets[name] = kernel.SetSummary{Set: s.Set, Members: len(s.members)}
		}
	}
	for family := range f.tables {
		read.Rules[family] = f.sumRules(family) + f.touched[family]
	}
	return read, nil
}

// AddMarkedServers adds n firewall-mark virtual servers, which only summaries show.
func (f *Fake) AddMarkedServers(n int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.marked += n
	return nil
}

// TouchRules changes only the summary of the rules, as if another program had written rules before ours.
func (f *Fake) TouchRules(family inet.Family, value uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.touched[family] = value
}

// In a built-in chain, only the rules up to our last jump count.
func (f *Fake) sumRules(family inet.Family) uint64 {
	sum := fnv.New64a()
	for _, id := range slices.SortedFunc(maps.Keys(f.tables[family]), compareChains) {
		lines, upTo := f.tables[family][id], 0
		for i, l := range lines {
			if !l.foreign || f.ours(id) {
				upTo = i + 1
			}
		}
		for _, l := range lines[:upTo] {
			_, _ = fmt.Fprintln(sum, id, l.foreign, l.args)
		}
	}
	return sum.Sum64()
}
