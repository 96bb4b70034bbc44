package nft

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/wire"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// replaceSet changes the parameters of a set, and removes stray members. The kernel cannot change parameters, and finds a range only by its
// first address, so one transaction deletes the set and creates it again with the members that fit. It also recreates the rules that look up
// the set, from the expressions that the kernel returned. Each packet sees either the old or the new set and rules.
func (b *Backend) replaceSet(ctx context.Context, want kernel.Set) error {
	sets, err := b.named(ctx, []string{want.Name})
	if err != nil {
		return fmt.Errorf("read sets: %w", err)
	}
	have, exists := sets[want.Name]
	if !exists {
		return kernel.ErrNotFound
	}
	members, stray, err := b.allMembers(ctx, have)
	if have.Stray = stray; err != nil {
		return fmt.Errorf("read members: %w", err)
	}
	if have == want {
		return nil
	}
	make, err := newSet(want)
	if err != nil {
		return err
	}
	reqs := []nlbatch.Request{wire.Set(want.Name).Delete(), make}
	if have.Type == want.Type && have.Family == want.Family {
		if reqs, err = b.keeping(ctx, members, want, reqs); err != nil {
			return err
		}
	}
	return b.conn.Commit(ctx, reqs)
}

func (b *Backend) keeping(ctx context.Context, members map[kernel.Element]struct{}, want kernel.Set, replace []nlbatch.Request) ([]nlbatch.Request, error) {
	if len(members) <= int(want.MaxElem) {
		for elements := range slices.Chunk(slices.Collect(maps.Keys(members)), wire.MaxElements) {
			req, err := elementRequest(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, want, elements...)
			if err != nil {
				return nil, err
			}
			replace = append(replace, req)
		}
	}
	flushes, rules, err := b.users(ctx, want.Name)
	return slices.Concat(flushes, replace, rules), err
}

// users finds the chains with rules that look up a set. It returns the requests that empty these chains, and the requests that refill them.
func (b *Backend) users(ctx context.Context, set string) (flushes, rules []nlbatch.Request, err error) {
	chains, err := b.conn.Chains(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("read chains: %w", err)
	}
	for _, name := range chains {
		if _, _, ours := parseChain(name); !ours {
			continue // a Balancer's chain: its rules use maps but no sets
		}
		chain := wire.Chain(name)
		listed, err := b.conn.Rules(ctx, chain)
		if err != nil {
			return nil, nil, fmt.Errorf("read rules of %s: %w", name, err)
		}
		if !slices.ContainsFunc(listed, func(r wire.ListedRule) bool { return looksUp(r, set) }) {
			continue
		}
		flushes = append(flushes, chain.Flush())
		for _, r := range listed {
			rules = append(rules, chain.Copy(r))
		}
	}
	return flushes, rules, nil
}

func looksUp(r wire.ListedRule, set string) bool {
	all, _ := r.Expressions()
	return slices.ContainsFunc(all, func(e wire.Expression) bool {
		return e.Name == "lookup" && e.Text(unix.NFTA_LOOKUP_SET) == set
	})
}
