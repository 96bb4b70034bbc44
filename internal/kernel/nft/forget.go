package nft

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// left has the frontends whose client maps may have removed endpoints.
type left struct {
	mu sync.Mutex
	at map[kernel.ServerKey]struct{}
}

func (l *left) add(key kernel.ServerKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.at[key] = struct{}{}
}

func (l *left) take() []kernel.ServerKey {
	l.mu.Lock()
	defer l.mu.Unlock()
	keys := slices.Collect(maps.Keys(l.at))
	clear(l.at)
	return keys
}

// Forgetter deletes the records of clients whose endpoint was removed. It runs concurrently with its Balancer. Until it has run, these
// clients have no affinity.
type Forgetter struct {
	*Backend
	left *left
}

// Forgetter opens a Forgetter.
func (b *Balancer) Forgetter() (*Forgetter, error) {
	backend, err := New(b.families, nil)
	if err != nil {
		return nil, err
	}
	return &Forgetter{backend, b.left}, nil
}

// Forget deletes the records, and then the rules that keep clients away from removed endpoints. After an error, the next call continues.
func (f *Forgetter) Forget(ctx context.Context) error {
	var errs []error
	for _, key := range f.left.take() {
		if err := f.forget(ctx, key); err != nil {
			f.left.add(key)
			errs = append(errs, fmt.Errorf("forget clients of %s: %w", key, err))
		}
	}
	return errors.Join(errs...)
}

func (f *Forgetter) forget(ctx context.Context, key kernel.ServerKey) error {
	rules, err := f.goneRules(ctx, affinity{key: key}.name())
	if err != nil || len(rules) == 0 {
		return err
	}
	for more := true; more; { // packets add records during the list, so it may miss some
		records, err := f.records(ctx, kernel.ClientsMap(key))
		if err != nil {
			return err
		}
		var stale []nlbatch.Request
		for _, e := range records {
			if _, gone := rules[e.data]; gone {
				stale = append(stale, entriesRequest(unix.NFT_MSG_DELSETELEM, 0, []entry{e}))
			}
		}
		for chunk := range slices.Chunk(stale, maxMembers) {
			if err := f.commitExisting(ctx, chunk); err != nil {
				return err
			}
		}
		more = len(stale) > 0
	}
	return f.commitExisting(ctx, slices.Collect(maps.Values(rules)))
}

// commitExisting runs a transaction. If objects have disappeared meanwhile, such as a record that expired, it runs another one without
// them.
func (f *Forgetter) commitExisting(ctx context.Context, reqs []nlbatch.Request) error {
	for len(reqs) > 0 {
		var exist []nlbatch.Request
		for i, err := range f.conn.Transaction(ctx, begin, reqs, end) {
			if err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
			if err == nil {
				exist = append(exist, reqs[i])
			}
		}
		if len(exist) == len(reqs) {
			return nil
		}
		reqs = exist
	}
	return nil
}

func (f *Forgetter) records(ctx context.Context, set string) (all []entry, err error) {
	payloads, err := f.dump(ctx, unix.NFT_MSG_GETSETELEM, elementsOf(set))
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	for _, p := range payloads {
		err = errors.Join(err, eachEntry(set, p, func(e entry) error {
			all = append(all, e)
			return nil
		}))
	}
	return all, err
}

// goneRules returns, for each removed endpoint, the request that deletes its rule.
func (f *Forgetter) goneRules(ctx context.Context, chain string) (map[string]nlbatch.Request, error) {
	which := nlbatch.AppendString(nlbatch.AppendString(nil, unix.NFTA_RULE_TABLE, Table), unix.NFTA_RULE_CHAIN, chain)
	payloads, err := f.dump(ctx, unix.NFT_MSG_GETRULE, which)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	rules := map[string]nlbatch.Request{}
	for _, p := range payloads {
		var gone []netip.AddrPort
		var handle []byte
		err = errors.Join(err, eachAttr(p, func(typ uint16, v []byte) error {
			switch typ {
			case unix.NFTA_RULE_HANDLE:
				handle = v
			case unix.NFTA_RULE_USERDATA:
				gone = goneIn([]string{commentOf(v)})
			}
			return nil
		}))
		for _, a := range gone {
			rules[string(endpointBytes(a))] = request(unix.NFT_MSG_DELRULE, 0, nlbatch.AppendAttr(rulesOf(chain), unix.NFTA_RULE_HANDLE, handle))
		}
	}
	return rules, err
}
