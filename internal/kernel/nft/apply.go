package nft

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/balance"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/wire"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// maxMembers is the largest number of members in a transaction. A member needs at most 200 bytes, so the transaction fits into one send.
const maxMembers = 400

// maxName is ipset's limit, so that a set can have the same name in ipset and nftables.
const maxName = 31

// Apply executes the operations on sets, members and rules in order, and returns a result for each. Consecutive operations on members share
// transactions. It is not an error to create an existing member or to delete a missing one.
func (b *Backend) Apply(ctx context.Context, ops []kernel.Op) []error {
	errs := make([]error, len(ops))
	deleted := false
	for from := 0; from < len(ops); {
		to := from
		for to < len(ops) && to < from+maxMembers && ops[to].KindOf() == kernel.KindMember {
			to++
		}
		if to > from {
			b.applyMembers(ctx, ops[from:to], errs[from:to])
			from = to
			continue
		}
		deleted = deleted || ops[from].Verb == kernel.Delete
		if err := b.applyOne(ctx, ops[from]); err != nil {
			errs[from] = fmt.Errorf("%s: %w", ops[from].In(kernel.IPVSWithNFTables), err)
		}
		from++
	}
	if deleted {
		balance.DropUnused(ctx, b.conn)
	}
	return errs
}

func (b *Backend) applyOne(ctx context.Context, op kernel.Op) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	switch o := op.Object.(type) {
	case kernel.Set:
		return b.applySet(ctx, op.Verb, o)
	case kernel.Ruleset:
		return b.applyRules(ctx, op.Verb, o)
	}
	return fmt.Errorf("apply %s: not an object of nftables", op.Object)
}

func (b *Backend) applyRules(ctx context.Context, verb kernel.Verb, r kernel.Ruleset) error {
	if verb == kernel.Ensure {
		if err := b.restoreHooks(ctx, r.Family); err != nil {
			return err
		}
	}
	all, err := b.conn.Chains(ctx)
	if err != nil {
		return fmt.Errorf("read chains: %w", err)
	}
	existing := slices.DeleteFunc(slices.Clone(all), func(name string) bool {
		f, _, ok := parseChain(name)
		return !ok || f != r.Family
	})
	switch verb {
	case kernel.Ensure:
		if err := b.checkSets(ctx, r); err != nil {
			return err
		}
		reqs, err := ruleset(r, existing)
		if err != nil {
			return err
		}
		if err := b.conn.Commit(ctx, reqs); err != nil {
			return err
		}
		if !b.balances {
			balance.Remove(ctx, b.conn, r.Family, all)
		}
		return nil
	case kernel.Delete:
		if len(existing) == 0 {
			return nil
		}
		return b.conn.Commit(ctx, wire.RemoveChains(existing))
	}
	return fmt.Errorf("verb %d does not apply to rules", verb)
}

// checkSets compares the keys of sets with the keys that rules look up. The kernel checks neither the family nor the length.
func (b *Backend) checkSets(ctx context.Context, r kernel.Ruleset) error {
	rules := make([]kernel.Rule, 0, len(r.Jumps))
	for _, j := range r.Jumps {
		rules = append(rules, j.Rule)
	}
	for _, c := range r.Chains {
		rules = append(rules, c.Rules...)
	}
	sets, err := b.named(ctx, setsIn(rules))
	if err != nil {
		return fmt.Errorf("read sets: %w", err)
	}
	for _, rule := range rules {
		for _, c := range rule.Conditions {
			if m, ok := c.(kernel.InSet); ok && !fits(sets[m.Set], m.Key, r.Family) {
				return fmt.Errorf("rule %s: there is no %s set %s with the key %s", rule, r.Family, m.Set, m.Key)
			}
		}
	}
	return nil
}

func setsIn(rules []kernel.Rule) (names []string) {
	for _, rule := range rules {
		for _, c := range rule.Conditions {
			if m, ok := c.(kernel.InSet); ok && !slices.Contains(names, m.Set) {
				names = append(names, m.Set)
			}
		}
	}
	return names
}

func fits(s kernel.Set, key kernel.SetKey, f inet.Family) bool {
	if s.Family != f {
		return false
	}
	switch key {
	case kernel.KeySource, kernel.KeyDestination:
		return s.Type == kernel.HashIP
	case kernel.KeyDestinationPort:
		return s.Type == kernel.HashIPPort
	}
	return s.Type == kernel.HashIPPortIP || s.Type == kernel.HashIPPortNet
}

func (b *Backend) applySet(ctx context.Context, verb kernel.Verb, s kernel.Set) error {
	switch verb {
	case kernel.Create:
		return b.createSet(ctx, s)
	case kernel.Update:
		return b.replaceSet(ctx, s)
	case kernel.Delete:
		err := b.conn.Commit(ctx, []nlbatch.Request{wire.Set(s.Name).Delete()})
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		return err
	}
	return fmt.Errorf("verb %d does not apply to sets", verb)
}

func (b *Backend) createSet(ctx context.Context, s kernel.Set) error {
	if len(s.Name) > maxName {
		return fmt.Errorf("its name is longer than %d characters", maxName)
	}
	req, err := newSet(s)
	if err != nil {
		return err
	}
	err = b.conn.Commit(ctx, []nlbatch.Request{wire.NewTable(), req})
	if errors.Is(err, unix.EEXIST) {
		return kernel.ErrExists
	}
	return err
}

// applyMembers runs a transaction. If the kernel refuses some members, it runs another transaction without them.
func (b *Backend) applyMembers(ctx context.Context, ops []kernel.Op, errs []error) {
	w, err := b.newWriter(ctx, ops)
	if err != nil {
		for i := range errs {
			errs[i] = fmt.Errorf("%s: %w", ops[i].In(kernel.IPVSWithNFTables), err)
		}
		return
	}
	for i, op := range ops {
		if err := w.add(ctx, i, op); err != nil {
			errs[i] = fmt.Errorf("%s: %w", op.In(kernel.IPVSWithNFTables), err)
		}
	}
	for len(w.reqs) > 0 {
		refused := map[int]error{}
		for n, err := range b.conn.Transact(ctx, w.reqs) {
			if err != nil {
				refused[w.index[n]] = err
			}
		}
		if len(refused) == 0 {
			return
		}
		for i, err := range refused {
			errs[i] = memberError(w.sets, ops[i], err)
		}
		w.drop(refused)
	}
}

type writer struct {
	*Backend
	sets map[string]kernel.Set
	// ranges contains, for each set of ranges, its members after the transaction.
	ranges map[string]map[kernel.Element]struct{}
	reqs   []nlbatch.Request
	index  []int // the operation that each request belongs to
}

func (b *Backend) newWriter(ctx context.Context, ops []kernel.Op) (*writer, error) {
	members := make([]kernel.Member, len(ops))
	for i, op := range ops {
		members[i] = op.Object.(kernel.Member)
	}
	sets, err := b.setsOf(ctx, members)
	return &writer{Backend: b, sets: sets, ranges: map[string]map[kernel.Element]struct{}{}}, err
}

func (w *writer) drop(refused map[int]error) {
	reqs, index := w.reqs, w.index
	w.reqs, w.index = nil, nil
	for n, i := range index {
		if refused[i] == nil {
			w.reqs, w.index = append(w.reqs, reqs[n]), append(w.index, i)
		}
	}
}

func (w *writer) add(ctx context.Context, i int, op kernel.Op) error {
	m := op.Object.(kernel.Member)
	s, exists := w.sets[m.Set]
	switch {
	case op.Verb != kernel.Create && op.Verb != kernel.Delete:
		return errors.New("the verb does not apply to members")
	case op.Verb == kernel.Delete && !exists:
		return nil
	case !exists:
		return fmt.Errorf("set %w", kernel.ErrNotFound)
	}
	if err := checkElement(s, m.Element); err != nil {
		return kernel.InvalidError{Reason: err}
	}
	if s.Type == kernel.HashIPPortNet {
		return w.addRange(ctx, i, op.Verb, s, m.Element)
	}
	return w.request(i, op.Verb, s, m.Element)
}

// addRange adds a range and deletes the ranges that overlap it. The wanted state contains no overlapping ranges, so
// the old ones are stale. The kernel would refuse a range inside another range. It also finds a range by its first
// address only, so of two overlapping ranges it may delete the wrong one. All of this is one transaction, so clients
// in both ranges are never refused.
func (w *writer) addRange(ctx context.Context, i int, verb kernel.Verb, s kernel.Set, e kernel.Element) error {
	members, read := w.ranges[s.Name]
	if !read {
		var err error
		if members, _, err = w.members(ctx, s); err != nil {
			return fmt.Errorf("read members: %w", err)
		}
		w.ranges[s.Name] = members
	}
	if _, exists := members[e]; exists == (verb == kernel.Create) {
		return nil
	}
	for have := range members {
		if have != e && verb == kernel.Create && overlap(have, e) {
			delete(members, have)
			if err := w.request(i, kernel.Delete, s, have); err != nil {
				return err
			}
		}
	}
	if verb == kernel.Create {
		members[e] = struct{}{}
	} else {
		delete(members, e)
	}
	return w.request(i, verb, s, e)
}

func overlap(a, b kernel.Element) bool {
	rangeOf := func(e kernel.Element) netip.Prefix { return netip.PrefixFrom(e.Addr2, int(e.Bits2)) }
	return a.Addr == b.Addr && a.Protocol == b.Protocol && a.Port == b.Port && rangeOf(a).Overlaps(rangeOf(b))
}

func (w *writer) request(i int, verb kernel.Verb, s kernel.Set, e kernel.Element) error {
	msg, flags := uint16(unix.NFT_MSG_NEWSETELEM), uint16(unix.NLM_F_CREATE)
	if verb == kernel.Delete {
		msg, flags = unix.NFT_MSG_DELSETELEM, 0
	}
	req, err := elementRequest(msg, flags, s, e)
	if err == nil {
		w.reqs, w.index = append(w.reqs, req), append(w.index, i)
	}
	return err
}

// memberError returns nil if the set is already in the state that the operation requests.
func memberError(sets map[string]kernel.Set, op kernel.Op, err error) error {
	if op.Verb == kernel.Delete && errors.Is(err, unix.ENOENT) {
		return nil
	}
	if errors.Is(err, unix.ENFILE) {
		set := op.Object.(kernel.Member).Set
		err = fmt.Errorf("%w: %s holds %d members (size)", kernel.ErrFull, set, sets[set].MaxElem)
	}
	return fmt.Errorf("%s: %w", op.In(kernel.IPVSWithNFTables), err)
}
