package nft

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/balance"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/wire"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// ReadSets returns the sets of the table whose names start with prefix, with their members. It repeats each list
// until two results agree.
func (b *Backend) ReadSets(ctx context.Context, prefix string) (map[string]kernel.Set, map[string]map[kernel.Element]struct{}, error) {
	return b.readSets(ctx, prefix, b.allMembers)
}

// ListSets takes half as long as ReadSets, but can miss existing members (see wire.Conn.Elements). LookupMembers
// finds them.
func (b *Backend) ListSets(ctx context.Context, prefix string) (map[string]kernel.Set, map[string]map[kernel.Element]struct{}, error) {
	return b.readSets(ctx, prefix, b.members)
}

type readMembers func(context.Context, kernel.Set) (members map[kernel.Element]struct{}, stray bool, err error)

func (b *Backend) readSets(ctx context.Context, prefix string, read readMembers) (
	map[string]kernel.Set, map[string]map[kernel.Element]struct{}, error,
) {
	all, err := b.sets(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("read sets: %w", err)
	}
	members := map[string]map[kernel.Element]struct{}{}
	for name, s := range all {
		if !strings.HasPrefix(name, prefix) {
			delete(all, name)
			continue
		}
		m, stray, err := read(ctx, s)
		if errors.Is(err, unix.ENOENT) {
			delete(all, name) // deleted in the meantime
			continue
		}
		if err != nil {
			return nil, nil, fmt.Errorf("read set %s: %w", name, err)
		}
		s.Stray = stray
		all[name], members[name] = s, m
	}
	return all, members, nil
}

const memberTries = 10

func (b *Backend) allMembers(ctx context.Context, s kernel.Set) (last map[kernel.Element]struct{}, stray bool, err error) {
	last, stray, err = b.members(ctx, s)
	for range memberTries {
		if err != nil || s.Type == "" {
			return last, stray, err
		}
		before, wasStray := last, stray
		if last, stray, err = b.members(ctx, s); err == nil && stray == wasStray && maps.Equal(before, last) {
			return last, stray, nil
		}
	}
	return nil, false, fmt.Errorf("it changed during each of %d reads", memberTries)
}

func (b *Backend) sets(ctx context.Context) (map[string]kernel.Set, error) {
	return setsByName(b.conn.Sets(ctx))
}

func (b *Backend) named(ctx context.Context, names []string) (map[string]kernel.Set, error) {
	return setsByName(b.conn.LookupSets(ctx, names))
}

func setsByName(listed map[string]wire.ListedSet, err error) (map[string]kernel.Set, error) {
	sets := make(map[string]kernel.Set, len(listed))
	for name, l := range listed {
		sets[name] = setOf(l)
	}
	return sets, err
}

func (b *Backend) setsOf(ctx context.Context, members []kernel.Member) (map[string]kernel.Set, error) {
	names := map[string]struct{}{}
	for _, m := range members {
		names[m.Set] = struct{}{}
	}
	sets, err := b.named(ctx, slices.Collect(maps.Keys(names)))
	if err != nil {
		return nil, fmt.Errorf("read sets: %w", err)
	}
	return sets, nil
}

// LookupMembers returns the given members that exist.
func (b *Backend) LookupMembers(ctx context.Context, members []kernel.Member) (map[kernel.Member]struct{}, error) {
	sets, err := b.setsOf(ctx, members)
	if err != nil {
		return nil, err
	}
	var asked []kernel.Member
	var reqs []nlbatch.Request
	for _, m := range members {
		if req, err := elementRequest(unix.NFT_MSG_GETSETELEM, 0, sets[m.Set], m.Element); err == nil { // an element that does not fit its set cannot exist
			asked, reqs = append(asked, m), append(reqs, req)
		}
	}
	answers, err := b.conn.Get(ctx, reqs)
	if err != nil {
		return nil, fmt.Errorf("look up members of sets: %w", err)
	}
	found := map[kernel.Member]struct{}{}
	for i, messages := range answers {
		have, stray := map[kernel.Element]struct{}{}, false
		for _, m := range messages { // for a range, the kernel may return a wider range
			if err := wire.EachElement(m.Payload, decodeInto(have, &stray, sets[asked[i].Set])); err != nil {
				return nil, fmt.Errorf("look up member %s: %w", asked[i], err)
			}
		}
		if _, exists := have[asked[i].Element]; exists {
			found[asked[i]] = struct{}{}
		}
	}
	return found, nil
}

// members lists a set. It returns nothing for a set of a type that the agent does not use.
func (b *Backend) members(ctx context.Context, s kernel.Set) (members map[kernel.Element]struct{}, stray bool, err error) {
	members = map[kernel.Element]struct{}{}
	if s.Type != "" {
		err = b.conn.Elements(ctx, wire.Set(s.Name), decodeInto(members, &stray, s))
	}
	return members, stray, err
}

// Read returns the rules of every family. If another program changed a base chain so that packets skip it, Read omits all jumps of the family, so that its rules are written again.
func (b *Backend) Read(ctx context.Context) (map[inet.Family]kernel.RulesView, error) {
	views := map[inet.Family]kernel.RulesView{}
	for _, f := range b.families {
		views[f] = kernel.RulesView{
			Chains: map[kernel.ChainID][]string{}, Jumps: map[kernel.ChainID][]string{},
			Foreign: map[kernel.ChainID][]string{}, Ahead: map[kernel.ChainID][]string{},
		}
	}
	chains, err := b.readable(ctx)
	if err != nil {
		return nil, fmt.Errorf("read chains: %w", err)
	}
	changed, err := b.altered(ctx, chains)
	if err != nil {
		return nil, fmt.Errorf("read tables: %w", err)
	}
	for _, c := range chains {
		f, id, ok := parseChain(c.Name)
		if !ok {
			continue // it belongs to a Balancer
		}
		if baseChains[id].Type == "" {
			views[f].Chains[id] = []string{}
		}
		rules, err := b.conn.Rules(ctx, wire.Chain(c.Name))
		if err != nil {
			return nil, fmt.Errorf("read rules of %s: %w", c.Name, err)
		}
		for _, r := range rules {
			see(views[f], id, r)
		}
	}
	for f, view := range views {
		if changed.family(f) {
			clear(view.Jumps)
		}
	}
	return views, nil
}

// readable returns the existing chains that Read reads, sorted by name.
func (b *Backend) readable(ctx context.Context) ([]wire.ListedChain, error) {
	all := map[string]struct{}{}
	for _, f := range b.families {
		for _, id := range b.chains {
			all[chainName(f, id)] = struct{}{}
		}
		all[balance.Entrance(f)] = struct{}{}
	}
	for name, w := range wantedBases {
		if slices.Contains(b.families, w.family) {
			all[name] = struct{}{}
		}
	}
	return b.conn.LookupChains(ctx, slices.Sorted(maps.Keys(all)))
}

func see(view kernel.RulesView, id kernel.ChainID, r wire.ListedRule) {
	tag := kernel.TagOf(r.Comment)
	foreign := fmt.Sprintf("a rule that `nft list chain inet %s %s` shows", Table, r.Chain)
	switch base := baseChains[id].Type != ""; {
	case !base:
		view.Chains[id] = append(view.Chains[id], tag)
		if tag == "" {
			view.Foreign[id] = append(view.Foreign[id], foreign)
		}
	case tag != "":
		view.Jumps[id] = append(view.Jumps[id], tag)
	default: // foreign rules must be removed from all chains
		view.Ahead[id] = append(view.Ahead[id], foreign)
	}
}
