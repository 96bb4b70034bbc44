package balance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/wire"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

const (
	// maxRecords limits the number of records in a transaction, so that it fits into one send.
	maxRecords = 400
	// maxPasses limits how often Forget reads the records of a frontend.
	maxPasses = 10
)

var errNewRecords = errors.New("packets keep adding records")

// left contains the frontends whose client maps may contain removed endpoints.
type left struct {
	mu sync.Mutex
	at map[kernel.ServerKey]struct{}
}

func (l *left) add(key kernel.ServerKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.at[key] = struct{}{}
}

// replace replaces the frontends with those that a complete read has found.
func (l *left) replace(at map[kernel.ServerKey]struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.at = at
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
	conn *wire.Conn
	left *left
}

// Forgetter opens a Forgetter, which notes the generations that it makes.
func (b *Balancer) Forgetter(w *wire.Writes) (*Forgetter, error) {
	conn, err := wire.Dial()
	if err != nil {
		return nil, err
	}
	conn.AttributeTo(w)
	return &Forgetter{conn, b.left}, nil
}

// Close closes the socket.
func (f *Forgetter) Close() error { return f.conn.Close() }

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
	for range maxPasses { // packets may be adding records, so a list can miss some
		records, err := f.records(ctx, kernel.ClientsMap(key))
		if err != nil {
			return err
		}
		// Read the rules after the records, and in each pass: if a removed endpoint is back, the new records of its clients stay.
		rules, err := f.goneRules(ctx, wire.Chain(affinity{key: key}.name()))
		if err != nil {
			return err
		}
		var stale []nlbatch.Request
		for _, e := range records {
			if _, gone := rules[e.Value]; gone {
				stale = append(stale, entriesRequest(unix.NFT_MSG_DELSETELEM, 0, e))
			}
		}
		if len(stale) == 0 {
			return f.commitExisting(ctx, slices.Collect(maps.Values(rules)))
		}
		for chunk := range slices.Chunk(stale, maxRecords) {
			if err := f.commitExisting(ctx, chunk); err != nil {
				return err
			}
		}
	}
	return errNewRecords
}

// commitExisting runs a transaction. If an object no longer exists, such as an expired record, it runs another transaction without it.
func (f *Forgetter) commitExisting(ctx context.Context, reqs []nlbatch.Request) error {
	for len(reqs) > 0 {
		var exist []nlbatch.Request
		for i, err := range f.conn.Transact(ctx, reqs) {
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
	err = f.conn.Elements(ctx, wire.Set(set), func(e wire.Element) error {
		all = append(all, entry{set, e})
		return nil
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	return all, err
}

func (f *Forgetter) goneRules(ctx context.Context, chain wire.Chain) (map[string]nlbatch.Request, error) {
	listed, err := f.conn.Rules(ctx, chain)
	rules := map[string]nlbatch.Request{}
	for _, r := range listed {
		for _, a := range goneIn([]string{r.Comment}) {
			rules[string(endpointBytes(a))] = chain.Remove(r)
		}
	}
	return rules, err
}
