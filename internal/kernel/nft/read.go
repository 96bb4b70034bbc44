package nft

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// ReadSets returns the sets of the table whose names start with prefix, with their members. It repeats each list until two agree.
func (b *Backend) ReadSets(ctx context.Context, prefix string) (map[string]kernel.Set, map[string]map[kernel.Element]struct{}, error) {
	return b.readSets(ctx, prefix, b.allMembers)
}

// ListSets costs half as much as ReadSets, but can miss existing members. The kernel continues a list after skipping as many elements as it
// has already listed. If elements are added or deleted, or the hash table grows afterwards, their order changes. LookupMembers finds
// members that a list missed.
func (b *Backend) ListSets(ctx context.Context, prefix string) (map[string]kernel.Set, map[string]map[kernel.Element]struct{}, error) {
	return b.readSets(ctx, prefix, b.members)
}

// readMembers lists the members of a set.
type readMembers func(context.Context, kernel.Set) (map[kernel.Element]struct{}, error)

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
		m, err := read(ctx, s)
		if errors.Is(err, unix.ENOENT) {
			delete(all, name) // deleted meanwhile
			continue
		}
		if err != nil {
			return nil, nil, fmt.Errorf("read set %s: %w", name, err)
		}
		members[name] = m
	}
	return all, members, nil
}

// allMembers repeats the list of a set until two lists agree.
func (b *Backend) allMembers(ctx context.Context, s kernel.Set) (map[kernel.Element]struct{}, error) {
	last, err := b.members(ctx, s)
	for range 2 * listTries {
		if err != nil || s.Type == "" {
			return last, err
		}
		before := last
		if last, err = b.members(ctx, s); err == nil && maps.Equal(before, last) {
			return last, nil
		}
	}
	return nil, fmt.Errorf("it changed during each of %d reads", 2*listTries)
}

// sets returns the sets of the table by name.
func (b *Backend) sets(ctx context.Context) (map[string]kernel.Set, error) {
	tries, torn, err := b.list(ctx, unix.NFT_MSG_GETSET, nlbatch.AppendString(nil, unix.NFTA_SET_TABLE, Table))
	if errors.Is(err, unix.ENOENT) {
		return map[string]kernel.Set{}, nil // the table does not exist
	}
	if err != nil {
		return nil, err
	}
	sets, err := decodeSets(slices.Concat(tries...))
	if torn && err == nil {
		return b.named(ctx, slices.Collect(maps.Keys(sets)))
	}
	return sets, err
}

// named returns the existing sets among the names.
func (b *Backend) named(ctx context.Context, names []string) (map[string]kernel.Set, error) {
	payloads, err := b.getSets(ctx, names)
	if err != nil {
		return nil, err
	}
	return decodeSets(payloads)
}

func (b *Backend) getSets(ctx context.Context, names []string) (payloads [][]byte, err error) {
	reqs := make([]nlbatch.Request, len(names))
	for i, name := range names {
		reqs[i] = request(unix.NFT_MSG_GETSET, 0, setNamed(name))
	}
	answers, err := b.get(ctx, reqs)
	for _, messages := range answers {
		for _, m := range messages {
			payloads = append(payloads, m.Payload)
		}
	}
	return payloads, err
}

func decodeSets(payloads [][]byte) (map[string]kernel.Set, error) {
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
	return sets, nil
}

// setsOf returns the existing sets of the members.
func (b *Backend) setsOf(ctx context.Context, members iter.Seq[kernel.Member]) (map[string]kernel.Set, error) {
	names := map[string]struct{}{}
	for m := range members {
		names[m.Set] = struct{}{}
	}
	sets, err := b.named(ctx, slices.Collect(maps.Keys(names)))
	if err != nil {
		return nil, fmt.Errorf("read sets: %w", err)
	}
	return sets, nil
}

// LookupMembers returns the members that exist.
func (b *Backend) LookupMembers(ctx context.Context, members []kernel.Member) (map[kernel.Member]struct{}, error) {
	sets, err := b.setsOf(ctx, slices.Values(members))
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
	answers, err := b.get(ctx, reqs)
	if err != nil {
		return nil, fmt.Errorf("look up members of sets: %w", err)
	}
	found := map[kernel.Member]struct{}{}
	for i, messages := range answers {
		have := map[kernel.Element]struct{}{}
		for _, m := range messages { // for a range, the kernel may return a wider one
			if err := decodeElements(sets[asked[i].Set], m.Payload, have); err != nil {
				return nil, fmt.Errorf("look up member %s: %w", asked[i], err)
			}
		}
		if _, exists := have[asked[i].Element]; exists {
			found[asked[i]] = struct{}{}
		}
	}
	return found, nil
}

// members lists a set. It returns nothing for a set with a type that the agent does not use.
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

// Read returns the rules of every family. If another program changed a base chain so that packets skip it, Read leaves its jump out.
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
		f, id, ok := parseChain(c.name)
		if !ok {
			continue // it belongs to a Balancer
		}
		if baseChains[id].typ == "" {
			views[f].Chains[id] = []string{}
		}
		payloads, err := b.rules(ctx, c.name)
		for _, p := range payloads {
			err = errors.Join(err, see(views[f], id, p))
		}
		if err != nil {
			return nil, fmt.Errorf("read rules of %s: %w", c.name, err)
		}
	}
	for f, view := range views {
		if changed.family(f) {
			clear(view.Jumps)
		}
	}
	return views, nil
}

// rules lists the rules of a chain.
func (b *Backend) rules(ctx context.Context, chain string) ([][]byte, error) {
	payloads, err := b.dump(ctx, unix.NFT_MSG_GETRULE, rulesOf(chain))
	if errors.Is(err, unix.ENOENT) {
		return nil, nil // deleted meanwhile
	}
	return payloads, err
}

// readable returns the chains that Read reads and that exist, sorted by name.
func (b *Backend) readable(ctx context.Context) ([]listedChain, error) {
	all := map[string]struct{}{}
	for _, f := range b.families {
		for _, id := range b.chains {
			all[chainName(f, id)] = struct{}{}
		}
		for _, c := range shared[f] {
			all[c.name] = struct{}{}
		}
	}
	for name, w := range wantedBases {
		if slices.Contains(b.families, w.family) {
			all[name] = struct{}{}
		}
	}
	return b.existing(ctx, slices.Sorted(maps.Keys(all)))
}

// existing returns the chains that exist.
func (b *Backend) existing(ctx context.Context, names []string) ([]listedChain, error) {
	reqs := make([]nlbatch.Request, len(names))
	for i, name := range names {
		reqs[i] = request(unix.NFT_MSG_GETCHAIN, 0, chainNamed(name))
	}
	answers, err := b.get(ctx, reqs)
	if err != nil {
		return nil, err
	}
	var payloads [][]byte
	for _, m := range slices.Concat(answers...) {
		payloads = append(payloads, m.Payload)
	}
	return decodeChains(payloads)
}

// see adds a rule of a chain to the view of its family.
func see(view kernel.RulesView, id kernel.ChainID, payload []byte) error {
	_, chain, text, err := decodeRule(payload)
	if err != nil {
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
	default: // a foreign rule must go, wherever it is
		view.Ahead[id] = append(view.Ahead[id], foreign)
	}
	return nil
}

// allChains returns the names of all chains of the table, sorted.
func (b *Backend) allChains(ctx context.Context) ([]string, error) {
	tries, torn, err := b.list(ctx, unix.NFT_MSG_GETCHAIN, nil)
	if err != nil {
		return nil, err
	}
	all, err := decodeChains(slices.Concat(tries...))
	if torn && err == nil {
		all, err = b.existing(ctx, namesOf(all))
	}
	return namesOf(all), err
}

func namesOf(chains []listedChain) (names []string) {
	for _, c := range chains {
		names = append(names, c.name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
