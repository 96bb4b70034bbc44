package kerneltest

import (
	"context"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

type slowness struct {
	takes  time.Duration
	random *rand.Rand
}

// SlowAudits makes audits take this long, as they would with many objects. An audit reads each object either when it starts or when it
// ends, at random. If anything is written during an audit, it also misses some unchanged objects, as nftables and IPVS dumps do.
func (f *Fake) SlowAudits(takes time.Duration, seed uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.slow = slowness{takes: takes, random: rand.New(rand.NewPCG(seed, seed))}
}

// Audit implements Kernel.
func (f *Fake) Audit(ctx context.Context, asked kernel.Audit) (*kernel.Differences, error) {
	fresh, err := f.readSlowly(ctx)
	var found map[kernel.ServerKey]kernel.ObservedServer
	if err == nil && len(asked.Limited) > 0 {
		found, err = f.Lookup(ctx, asked.Limited)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		f.comparer = kernel.Comparer{}
		return nil, err
	}
	d := f.comparer.Compare(fresh, asked, found)
	d.Node = &kernel.Node{Addresses: slices.SortedFunc(maps.Keys(f.nodeAddrs), netip.Addr.Compare), Network: maps.Clone(f.network)}
	return d, nil
}

func (f *Fake) readSlowly(ctx context.Context) (*kernel.State, error) {
	f.mu.Lock()
	slow, written := f.slow, f.writes
	f.mu.Unlock()
	early, err := f.Read(ctx)
	if err != nil || slow.takes == 0 {
		return early, err
	}
	select {
	case <-time.After(slow.takes):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	late := f.copyState()
	hideLimits(late)
	isEarly := func() bool { return slow.random.IntN(2) == 0 }
	if isEarly() {
		late.Sysctls, late.Device, late.Timeouts = early.Sysctls, early.Device, early.Timeouts
	}
	if isEarly() {
		late.Rules = early.Rules
	}
	late.RulesErr = early.RulesErr
	for family := range late.RulesErr {
		delete(late.Rules, family)
	}
	late.Servers = mix(isEarly, early.Servers, late.Servers)
	late.Addresses = mix(isEarly, early.Addresses, late.Addresses)
	for name := range late.Members {
		if _, existed := early.Sets[name]; existed {
			late.Members[name] = mix(isEarly, early.Members[name], late.Members[name])
		}
	}
	if f.writes != written {
		late.MayMiss = true
		miss := func(any) bool { return slow.random.IntN(50) == 0 }
		maps.DeleteFunc(late.Servers, func(key kernel.ServerKey, _ kernel.ObservedServer) bool { return miss(key) })
		for _, members := range late.Members {
			maps.DeleteFunc(members, func(e kernel.Element, _ struct{}) bool { return miss(e) })
		}
	}
	return late, nil
}

func mix[K comparable, V any](first func() bool, a, b map[K]V) map[K]V {
	mixed := map[K]V{}
	all := maps.Clone(a)
	maps.Copy(all, b)
	for key := range all {
		from := b
		if first() {
			from = a
		}
		if value, exists := from[key]; exists {
			mixed[key] = value
		}
	}
	return mixed
}
