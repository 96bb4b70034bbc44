package nft

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// This file detects, tests and removes balancing in a table that it shares with rules.

// Balances reports whether the table has chains that balance.
func (b *Backend) Balances(ctx context.Context) (bool, error) {
	chains, err := b.allChains(ctx)
	if err != nil {
		return false, fmt.Errorf("read chains: %w", err)
	}
	return slices.ContainsFunc(chains, func(name string) bool {
		return slices.ContainsFunc(inet.Families, func(f inet.Family) bool { return name == balanceChain(f) })
	}), nil
}

// TryBalancing asks the kernel to create the maps and chains for balancing, without committing them. This loads the necessary modules.
func (b *Backend) TryBalancing(ctx context.Context) error {
	var reqs []nlbatch.Request
	for _, f := range b.families {
		key := kernel.ServerKey{Addr: netip.AddrPortFrom(unspecified(f), 1), Protocol: inet.TCP}
		reqs = slices.Concat(reqs, foundation(f), []nlbatch.Request{affinityMap(key)})
		none, one := picker{family: f}, picker{family: f, slots: 1}
		keep := affinity{key: key, timeout: 1, mask: 1, gone: []netip.AddrPort{key.Addr}, pick: one}
		for _, c := range append([]chain{none.chain(), one.chain()}, keep.chains()...) {
			reqs = append(reqs, c.requests()...)
		}
	}
	for _, err := range b.conn.Transaction(ctx, begin, reqs) {
		if err != nil {
			return fmt.Errorf("balancing: %w", err)
		}
	}
	return nil
}

func unspecified(f inet.Family) netip.Addr {
	if f == inet.IPv6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// balances reports whether a rule sends packets to the chain for balancing.
func balances(r kernel.Ruleset) bool {
	return slices.ContainsFunc(r.Chains, func(c kernel.Chain) bool {
		return slices.ContainsFunc(c.Rules, func(rule kernel.Rule) bool { return rule.Verdict == kernel.Balance{} })
	})
}

// balancingChain reports whether a Balancer uses this name for a chain.
func balancingChain(f inet.Family, name string) bool {
	for _, kind := range []string{"balance", "pick", "all-ports", "affinity", "record"} {
		if rest, ours := strings.CutPrefix(name, fmt.Sprintf("%s%d", kind, f)); ours && (rest == "" || rest[0] == '.' || rest[0] == '-') {
			return true
		}
	}
	return false
}

// balancingMap reports whether a Balancer uses this name for a map.
func balancingMap(f inet.Family, name string) bool {
	return name == frontendsMap(f) || name == slotsMap(f) || name == recordMap(f) || strings.HasPrefix(name, fmt.Sprintf("%s%d.", clients, f))
}

// unused reports whether the table has neither sets, nor rules, nor virtual servers.
func (b *Backend) unused(ctx context.Context) (bool, error) {
	t, err := b.table(ctx)
	if err != nil || !t.exists || t.used == 0 {
		return t.exists, err
	}
	sets, err := b.sets(ctx)
	if err != nil {
		return false, err
	}
	chains, err := b.allChains(ctx)
	if err != nil {
		return false, err
	}
	for _, f := range inet.Families {
		chains = slices.DeleteFunc(chains, func(name string) bool { return balancingChain(f, name) })
		if _, exists := sets[frontendsMap(f)]; exists {
			if n, err := b.countElements(ctx, frontendsMap(f)); err != nil || n > 0 {
				return false, err
			}
		}
		maps.DeleteFunc(sets, func(name string, _ kernel.Set) bool { return balancingMap(f, name) })
	}
	return len(chains) == 0 && len(sets) == 0, nil
}

// withoutBalancing deletes the chains and maps of a family if no rule uses them. Open connections keep their endpoints.
func (b *Backend) withoutBalancing(ctx context.Context, f inet.Family, chains []string) []nlbatch.Request {
	var flushes, deletions, sets []nlbatch.Request
	for _, name := range chains {
		if balancingChain(f, name) {
			flushes, deletions = append(flushes, flushChain(name)), append(deletions, deleteChain(name))
		}
	}
	existing, err := b.sets(ctx)
	if err != nil {
		return nil
	}
	for name := range existing {
		if balancingMap(f, name) {
			sets = append(sets, deleteSet(name))
		}
	}
	return slices.Concat(flushes, sets, deletions)
}
