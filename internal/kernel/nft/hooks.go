package nft

import (
	"context"
	"fmt"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/balance"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/wire"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// This file finds and repairs changes by other programs that keep packets away from existing rules: a dormant table,
// or a base chain with another policy or hook.

// wantedBase is a base chain as the agent creates it. rules contains the requests that recreate the chain and its
// rules; it is empty if a ruleset recreates them.
type wantedBase struct {
	family inet.Family
	hook   wire.Hook
	rules  []nlbatch.Request
}

var wantedBases = allBases()

func allBases() map[string]wantedBase {
	all := map[string]wantedBase{}
	for _, f := range inet.Families {
		for id, h := range baseChains {
			all[chainName(f, id)] = wantedBase{family: f, hook: h}
		}
		for _, c := range balance.BaseChains(f) {
			all[c.Name] = wantedBase{family: f, hook: c.Hook, rules: c.Requests()}
		}
	}
	return all
}

// altered contains the table, and the base chains that other programs changed.
type altered struct {
	table  wire.Table
	chains []wire.ListedChain
}

func (b *Backend) altered(ctx context.Context, all []wire.ListedChain) (a altered, err error) {
	a.table, err = b.conn.Table(ctx)
	for _, c := range all {
		if w, base := wantedBases[c.Name]; base && (c.Hook != w.hook || c.Policy != wire.Accept) {
			a.chains = append(a.chains, c)
		}
	}
	return a, err
}

func (a altered) family(f inet.Family) bool {
	return a.table.Dormant() || slices.ContainsFunc(a.chains, func(c wire.ListedChain) bool { return wantedBases[c.Name].family == f })
}

// repair undoes the changes for a family. It deletes chains with another hook; the family's ruleset then creates them again.
func (a altered) repair(f inet.Family) []nlbatch.Request {
	var reqs []nlbatch.Request
	if a.table.Dormant() {
		reqs = append(reqs, a.table.Wake())
	}
	for _, c := range a.chains {
		w := wantedBases[c.Name]
		if w.family != f {
			continue
		}
		if c.Hook == w.hook {
			reqs = append(reqs, wire.Chain(c.Name).CreateBase(w.hook))
			continue
		}
		reqs = slices.Concat(reqs, wire.RemoveChains([]string{c.Name}), w.rules)
	}
	return reqs
}

func (b *Backend) restoreHooks(ctx context.Context, f inet.Family) error {
	all, err := b.readable(ctx)
	if err != nil {
		return fmt.Errorf("read chains: %w", err)
	}
	changed, err := b.altered(ctx, all)
	if err != nil {
		return fmt.Errorf("read tables: %w", err)
	}
	if reqs := changed.repair(f); len(reqs) > 0 {
		return b.conn.Commit(ctx, reqs)
	}
	return nil
}
