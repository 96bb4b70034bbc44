package nft

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// ReadSets returns the sets of the table whose names start with prefix, and their members.
func (b *Backend) ReadSets(ctx context.Context, prefix string) (
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
		m, err := b.members(ctx, s)
		if errors.Is(err, unix.ENOENT) {
			delete(all, name) // deleted since
			continue
		}
		if err != nil {
			return nil, nil, fmt.Errorf("read set %s: %w", name, err)
		}
		members[name] = m
	}
	return all, members, nil
}

func (b *Backend) sets(ctx context.Context) (map[string]kernel.Set, error) {
	payloads, err := b.dump(ctx, unix.NFT_MSG_GETSET, nlbatch.AppendString(nil, unix.NFTA_SET_TABLE, Table))
	if errors.Is(err, unix.ENOENT) {
		return map[string]kernel.Set{}, nil // no table
	}
	sets := map[string]kernel.Set{}
	for _, p := range payloads {
		table, s, err := decodeSet(p)
		if err != nil {
			return nil, err
		}
		if table == Table {
			sets[s.Name] = s
		}
	}
	return sets, err
}

// members lists a set. One of a type that is not ours has none.
func (b *Backend) members(ctx context.Context, s kernel.Set) (map[kernel.Element]struct{}, error) {
	members := map[kernel.Element]struct{}{}
	if s.Type == "" {
		return members, nil
	}
	payloads, err := b.dump(ctx, unix.NFT_MSG_GETSETELEM, elementsOf(s.Name))
	for _, p := range payloads {
		if err := decodeElements(s, p, members); err != nil {
			return nil, err
		}
	}
	return members, err
}

// Read returns the rules of every family.
func (b *Backend) Read(ctx context.Context) (map[inet.Family]kernel.RulesView, error) {
	views := map[inet.Family]kernel.RulesView{}
	for _, f := range b.families {
		views[f] = kernel.RulesView{
			Chains: map[kernel.ChainID][]string{}, Jumps: map[kernel.ChainID][]string{},
			Foreign: map[kernel.ChainID][]string{}, Ahead: map[kernel.ChainID][]string{},
		}
	}
	chains, err := b.chains(ctx)
	if err != nil {
		return nil, fmt.Errorf("read chains: %w", err)
	}
	for _, name := range chains {
		f, id, ok := parseChain(name)
		if view, served := views[f]; ok && served && baseChains[id].typ == "" {
			view.Chains[id] = []string{}
		}
	}
	payloads, err := b.dump(ctx, unix.NFT_MSG_GETRULE, nlbatch.AppendString(nil, unix.NFTA_RULE_TABLE, Table))
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("read rules: %w", err)
	}
	for _, p := range payloads {
		if err := see(views, p); err != nil {
			return nil, fmt.Errorf("read rules: %w", err)
		}
	}
	return views, nil
}

// see adds a rule to the view of its family.
func see(views map[inet.Family]kernel.RulesView, payload []byte) error {
	table, chain, text, err := decodeRule(payload)
	f, id, ok := parseChain(chain)
	view, served := views[f]
	if err != nil || table != Table || !ok || !served {
		return err
	}
	tag := kernel.TagOf(text)
	foreign := fmt.Sprintf("a rule that `nft list chain inet %s %s` shows", Table, chain)
	switch base := baseChains[id].typ != ""; {
	case !base:
		view.Chains[id] = append(view.Chains[id], tag)
		if tag == "" {
			view.Foreign[id] = append(view.Foreign[id], foreign)
		}
	case tag != "":
		view.Jumps[id] = append(view.Jumps[id], tag)
	default: // no other program's rule belongs here, wherever it is
		view.Ahead[id] = append(view.Ahead[id], foreign)
	}
	return nil
}

// chains lists the names of all chains of the table.
func (b *Backend) chains(ctx context.Context) ([]string, error) {
	payloads, err := b.dump(ctx, unix.NFT_MSG_GETCHAIN, nil)
	var all []string
	for _, p := range payloads {
		table, name, err := names(p, unix.NFTA_CHAIN_TABLE, unix.NFTA_CHAIN_NAME)
		if err != nil {
			return nil, err
		}
		if table == Table {
			all = append(all, name)
		}
	}
	return all, err
}
