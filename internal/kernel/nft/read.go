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

// ReadSets returns the sets of the table whose names start with prefix, and their members. It lists members again until it finds the same.
func (b *Backend) ReadSets(ctx context.Context, prefix string) (map[string]kernel.Set, map[string]map[kernel.Element]struct{}, error) {
	return b.readSets(ctx, prefix, b.allMembers)
}

// ListSets does so at half the cost, but may lack members that exist: the kernel continues a list after as many elements as it has listed, in
// whatever order they are by then. Changes, and a table that grows after them, change the order. LookupMembers shows whether they exist.
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

// allMembers lists a set until two lists agree.
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
		return map[string]kernel.Set{}, nil // no table
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

// named returns those of the sets that exist.
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

// setsOf returns those of the sets of members that exist.
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

// LookupMembers returns those of the members that exist.
func (b *Backend) LookupMembers(ctx context.Context, members []kernel.Member) (map[kernel.Member]struct{}, error) {
	sets, err := b.setsOf(ctx, slices.Values(members))
	if err != nil {
		return nil, err
	}
	var asked []kernel.Member
	var reqs []nlbatch.Request
	for _, m := range members {
		if req, err := elementRequest(unix.NFT_MSG_GETSETELEM, 0, sets[m.Set], m.Element); err == nil { // otherwise it cannot exist
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
		for _, m := range messages { // of a range, the kernel may find a wider one
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

// Read returns the rules of every family. Base chains of a family that packets do not pass as they should are seen without their jumps.
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
			continue // a Balancer's
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

// rules lists those of a chain.
func (b *Backend) rules(ctx context.Context, chain string) ([][]byte, error) {
	payloads, err := b.dump(ctx, unix.NFT_MSG_GETRULE, rulesOf(chain))
	if errors.Is(err, unix.ENOENT) {
		return nil, nil // deleted since
	}
	return payloads, err
}

// readable returns those of the chains to read that exist, sorted by name.
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

// existing returns those of the chains that exist.
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
	default: // no other program's rule belongs here, wherever it is
		view.Ahead[id] = append(view.Ahead[id], foreign)
	}
	return nil
}

// allChains lists the names of all chains of the table, sorted.
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
