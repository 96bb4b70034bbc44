package balance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/wire"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// Balancer implements virtual servers and destinations with the maps of the table, for kernels without IPVS. It picks a random slot of the
// frontend, and conntrack translates the connection to the endpoint of that slot. It does not count connections.
type Balancer struct {
	conn     *wire.Conn
	families []inet.Family
	// known is the kernel state according to the last read and the writes since then. nil means that it must be read.
	known *content
	// uses counts how many known frontends use each chain. unused contains the chains without a frontend.
	uses   map[string]int
	unused map[string]struct{}
	left   *left
}

// New opens a Balancer in the network namespace of the calling thread. If the kernel has no nftables, New returns
// kernel.ErrUnavailable.
func New(families []inet.Family) (*Balancer, error) {
	conn, err := wire.Dial()
	if err != nil {
		return nil, err
	}
	return &Balancer{conn: conn, families: families, left: &left{at: map[kernel.ServerKey]struct{}{}}}, nil
}

// Close closes the socket. The table stays in the kernel.
func (b *Balancer) Close() error { return b.conn.Close() }

// AttributeTo notes the generations that the Balancer makes.
func (b *Balancer) AttributeTo(w *wire.Writes) { b.conn.AttributeTo(w) }

// Stats counts the requests since New.
func (b *Balancer) Stats() nlbatch.Stats { return b.conn.Stats() }

// Schedulers reports which of these schedulers a virtual server can name. Balancing is always random.
func (b *Balancer) Schedulers(ctx context.Context, names []string) map[string]bool {
	has := map[string]bool{}
	for _, name := range names {
		if ctx.Err() == nil {
			has[name] = slices.Contains(schedulers, name)
		}
	}
	return has
}

// Timeouts returns nothing, because conntrack's timeouts apply, and the agent does not set them.
func (b *Balancer) Timeouts(context.Context) (kernel.Timeouts, error) { return kernel.Timeouts{}, nil }

// change is a virtual server with the operations on it that the kernel has not refused.
type change struct {
	key   kernel.ServerKey
	ops   []int
	draft draft
	from  *found // nil if the kernel contains nothing
	to    *frontend
}

// Apply executes the operations on virtual servers and destinations. One transaction contains the operations on many virtual servers.
// If the kernel state differs from the known state, Apply reads it and retries the operations once.
func (b *Balancer) Apply(ctx context.Context, ops []kernel.Op) []error {
	errs, fresh, err := make([]error, len(ops)), b.known == nil, ctx.Err()
	if err == nil && fresh {
		err = b.reread(ctx, keysOf(ops))
	}
	if err != nil {
		return describeAll(ops, errs, err)
	}
	all := make([]int, len(ops))
	for i := range all {
		all[i] = i
	}
	if retry, read := b.try(ctx, ops, all, errs, fresh); len(retry) > 0 {
		if !read {
			err = b.reread(ctx, keysOf(ops))
		}
		for _, i := range retry {
			errs[i] = err
		}
		if err == nil {
			b.try(ctx, ops, retry, errs, true)
		}
	}
	if b.known != nil {
		b.tidy(ctx)
	}
	for i, err := range errs {
		if err != nil {
			errs[i] = fmt.Errorf("%s: %w", ops[i].In(kernel.NFTablesOnly), err)
		}
	}
	return errs
}

// try executes the chosen operations. It returns the operations to retry after a read, because the known state may be outdated, and whether it
// has read the state itself. If sure is true, the known state has just been read.
func (b *Balancer) try(ctx context.Context, ops []kernel.Op, chosen []int, errs []error, sure bool) (retry []int, read bool) {
	changes, outdated := b.prepare(ops, chosen, errs)
	b.refreshGone(ctx, changes)
	if outdated && !sure {
		return chosen, false // nothing was written
	}
	if refused, read := b.write(ctx, changes, errs, sure); !refused || sure || !read {
		return nil, false
	}
	for _, i := range chosen {
		if errs[i] != nil {
			retry = append(retry, i)
		}
	}
	return retry, true
}

func describeAll(ops []kernel.Op, errs []error, err error) []error {
	for i := range errs {
		errs[i] = fmt.Errorf("%s: %w", ops[i].In(kernel.NFTablesOnly), err)
	}
	return errs
}

// reread reads the kernel state. It looks up the frontends that a list misses.
func (b *Balancer) reread(ctx context.Context, keys []kernel.ServerKey) (err error) {
	if b.known, err = b.readContent(ctx, keys); err != nil {
		return err
	}
	b.uses, b.unused = map[string]int{}, map[string]struct{}{}
	for name := range b.known.chains {
		if slices.ContainsFunc(b.families, func(f inet.Family) bool { return ownChain(f, name) && !isShared(f, name) }) {
			b.unused[name] = struct{}{}
		}
	}
	for _, f := range b.known.frontends {
		b.use(f.frontend, 1)
	}
	return nil
}

// use changes the number of frontends that use the chains of f, and notifies the Forgetter if clients may still be assigned
// to removed endpoints of f.
func (b *Balancer) use(f *frontend, by int) {
	if f == nil {
		return
	}
	for _, name := range f.chainNames() {
		if b.uses[name] += by; b.uses[name] == 0 {
			delete(b.uses, name)
			b.unused[name] = struct{}{}
		} else {
			delete(b.unused, name)
		}
	}
	if len(f.gone) > 0 && by > 0 {
		b.left.add(f.Key)
	}
}

// spare is the number of unused chains, other than those for affinity, that tidy keeps. A rolling update soon uses them again, and to
// create or delete a chain takes much longer than to change an endpoint.
const spare = 100

// tidy deletes the chains that no frontend uses, along with their maps. If that fails, they stay until the next read.
func (b *Balancer) tidy(ctx context.Context) {
	if len(b.known.frontends) == 0 {
		DropUnused(ctx, b.conn)
		defer func() { b.known = nil }() // the table may have been deleted
	}
	unused := slices.Sorted(maps.Keys(b.unused))
	picks := func(name string) bool { _, picks := pickerOf(name); return picks }
	if others := slices.DeleteFunc(slices.Clone(unused), picks); len(unused)-len(others) <= spare {
		unused = others
	}
	for names := range slices.Chunk(unused, wire.MaxElements) {
		removal, records := b.known.chains.removal(names), []nlbatch.Request(nil)
		for _, name := range names {
			if of, keeps := strings.CutPrefix(name, "affinity"); keeps {
				records = append(records, wire.Set(clients+of).Delete())
			}
			delete(b.unused, name)
			delete(b.known.chains, name)
		}
		if b.conn.Commit(ctx, slices.Concat(removal, records)) != nil && len(records) > 0 {
			_ = b.conn.Commit(ctx, removal) // another program may have deleted a map
		}
	}
}

func keyOf(op kernel.Op) (kernel.ServerKey, bool) {
	switch o := op.Object.(type) {
	case kernel.Server:
		return o.Key, true
	case kernel.ServerDestination:
		return o.Server, true
	}
	return kernel.ServerKey{}, false
}

func keysOf(ops []kernel.Op) []kernel.ServerKey {
	keys := map[kernel.ServerKey]struct{}{}
	for _, op := range ops {
		if key, ok := keyOf(op); ok {
			keys[key] = struct{}{}
		}
	}
	return slices.Collect(maps.Keys(keys))
}

// prepare computes the state of the frontends after the operations. outdated is true if an operation does not fit the known state.
func (b *Balancer) prepare(ops []kernel.Op, chosen []int, errs []error) (changes []*change, outdated bool) {
	byKey := map[kernel.ServerKey]*change{}
	for _, i := range chosen {
		op := ops[i]
		key, ok := keyOf(op)
		if !ok {
			errs[i] = fmt.Errorf("only IPVS has objects of this kind: %w", kernel.ErrUnavailable)
			continue
		}
		w := byKey[key]
		if w == nil {
			w = newChange(key, b.known.frontends[key])
			byKey[key], changes = w, append(changes, w)
		}
		changed, err := w.draft.apply(op)
		outdated = outdated || !changed && !errors.As(err, &kernel.InvalidError{})
		if errs[i] = err; err == nil {
			w.ops = append(w.ops, i)
		}
	}
	for _, w := range changes {
		if w.draft.exists {
			w.to = w.target()
		}
	}
	return changes, outdated
}

// refreshGone drops removed endpoints whose clients the Forgetter has forgotten. If the read fails, they stay.
func (b *Balancer) refreshGone(ctx context.Context, changes []*change) {
	for _, w := range changes {
		old := w.old()
		if len(old.gone) == 0 || w.to == nil {
			continue
		}
		if read, err := b.readComments(ctx, old.chain()); err == nil {
			b.known.chains[old.chain()] = read[old.chain()]
			old.gone = goneIn(read[old.chain()])
			w.to = w.target()
		}
	}
}

func newChange(key kernel.ServerKey, from *found) *change {
	w := &change{key: key, from: from, draft: draft{Server: kernel.Server{Key: key}}}
	switch {
	case from == nil:
	case from.frontend != nil:
		w.draft = draft{exists: true, Server: from.frontend.Server, dests: from.frontend.destinations()}
	case from.parts.Key.Addr.IsValid():
		w.draft = draft{exists: true, Server: from.parts.Server, dests: from.parts.destinations()}
	}
	return w
}

// target returns the frontend after the change.
func (w *change) target() *frontend {
	if w.from == nil || w.from.frontend != nil {
		return w.old().with(w.draft.Server, w.draft.dests)
	}
	to := w.from.parts.with(w.draft.Server, w.draft.dests)
	if w.from.unsure && to.hasAffinity() {
		to.gone, to.forgetful = nil, true
	}
	return to
}

// old returns the frontend before the change. It is empty if the kernel contains no frontend, or only parts of it.
func (w *change) old() *frontend {
	if w.from == nil || w.from.frontend == nil {
		return &frontend{}
	}
	return w.from.frontend
}

// maxTransaction limits the size of a transaction, so that it fits into one send.
const maxTransaction = 100 << 10

// write writes the changes in transactions. If the kernel refuses some changes, it writes the others again, after reading the kernel state if
// that may differ from what is known.
func (b *Balancer) write(ctx context.Context, changes []*change, errs []error, sure bool) (refused, read bool) {
	for len(changes) > 0 {
		n, whole, failed := b.writeSome(ctx, changes)
		if len(failed) == 0 {
			b.settle(changes[:n])
			changes = changes[n:]
			continue
		}
		refused = true
		if !sure || !whole {
			keys := make([]kernel.ServerKey, len(changes))
			for i, w := range changes {
				keys[i] = w.key
			}
			if err := b.reread(ctx, keys); err != nil {
				failed[nil] = err
			}
			sure, read = true, true
		}
		if failed[nil] != nil {
			for _, w := range changes {
				w.fail(errs, failed[nil])
			}
			return true, read
		}
		changes = slices.DeleteFunc(changes, func(w *change) bool {
			if failed[w] != nil {
				w.fail(errs, failed[w])
				return true
			}
			w.from = b.known.frontends[w.key]
			return false
		})
	}
	return refused, read
}

func (w *change) fail(errs []error, err error) {
	for _, i := range w.ops {
		errs[i] = err
	}
}

// writeSome writes as many changes as fit into one transaction, and at least one. An error under the key nil applies to all of
// them. If whole is true, an error means that nothing was written.
func (b *Balancer) writeSome(ctx context.Context, changes []*change) (n int, whole bool, failed map[*change]error) {
	units := b.prerequisites(changes)
	owners, size := make([]*change, len(units)), bytesIn(slices.Concat(units...))
	for ; n < len(changes) && (n == 0 || size < maxTransaction); n++ {
		for _, u := range changes[n].units(b.known.chains) {
			size += bytesIn(u)
			units, owners = append(units, u), append(owners, changes[n])
		}
	}
	sent, failed := b.send(ctx, units, owners)
	for _, err := range failed {
		var refusal *nlbatch.Error // of one request: the kernel then undoes the others of the transaction
		whole = whole || sent == 1 && errors.As(err, &refusal)
	}
	return n, whole, failed
}

func bytesIn(reqs []nlbatch.Request) (n int) {
	for _, r := range reqs {
		n += len(r.Payload)
	}
	return n
}

// prerequisites returns the requests for missing chains and maps. A unit contains all requests that concern one chain.
func (b *Balancer) prerequisites(changes []*change) (units [][]nlbatch.Request) {
	made := map[string]bool{}
	lacks := func(c Chain) bool {
		lacks := !made[c.Name] && !b.known.chains.have(c)
		made[c.Name] = true
		return lacks
	}
	for _, w := range changes {
		if w.to == nil {
			continue
		}
		f := w.key.Family()
		if slices.ContainsFunc(shared[f], lacks) {
			unit := foundation(f)
			if b.known.chains.ofVersion010(f) {
				unit = append(unit, wire.Set(numbersMap(f)).Flush())
			}
			units = append(units, unit)
			for _, c := range shared[f] {
				made[c.Name] = true
			}
		}
		if c := w.to.picker().chain(); lacks(c) {
			units = append(units, c.Requests())
		}
	}
	return units
}

func foundation(f inet.Family) []nlbatch.Request {
	reqs := slices.Concat([]nlbatch.Request{wire.NewTable()}, sharedMaps(f), entrance(f).Requests())
	for _, c := range BaseChains(f) {
		reqs = append(reqs, c.Requests()...)
	}
	return reqs
}

// send runs one transaction, or several if the units are too large for one. It never splits a unit. It returns the number of transactions.
func (b *Balancer) send(ctx context.Context, units [][]nlbatch.Request, owners []*change) (sent int, failed map[*change]error) {
	failed = map[*change]error{}
	for from := 0; from < len(units) && len(failed) == 0; sent++ {
		size, to := 0, from
		var reqs []nlbatch.Request
		var of []*change
		for ; to < len(units) && (to == from || size+bytesIn(units[to]) < maxTransaction*3/2); to++ {
			size += bytesIn(units[to])
			for _, r := range units[to] {
				reqs, of = append(reqs, r), append(of, owners[to])
			}
		}
		for i, err := range b.conn.Transact(ctx, reqs) {
			if owner := of[i]; err != nil && failed[owner] == nil {
				failed[owner] = err
			}
		}
		from = to
	}
	return sent, failed
}

func (b *Balancer) settle(done []*change) {
	for _, w := range done {
		if w.from != nil {
			b.use(w.from.frontend, -1)
		}
		b.use(w.to, 1)
		if w.to == nil {
			delete(b.known.frontends, w.key)
			continue
		}
		b.known.frontends[w.key] = &found{frontend: w.to}
		for _, c := range append(w.to.chains(), shared[w.key.Family()]...) {
			b.known.chains[c.Name] = c.comments()
		}
	}
}
