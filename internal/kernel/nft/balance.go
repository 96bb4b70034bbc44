package nft

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// Balancer renders virtual servers and destinations as maps of the table, for kernels without IPVS: a random slot of the frontend's map
// has the endpoint to which conntrack translates a connection. Connections are not counted.
type Balancer struct {
	*Backend
	// known is what the kernel holds, according to the last read and the writes since; nil if it must be read.
	known *content
}

// NewBalancer opens one.
func NewBalancer(families []inet.Family) (*Balancer, error) {
	b, err := New(families)
	if err != nil {
		return nil, err
	}
	return &Balancer{Backend: b.WithBalancing()}, nil
}

// Schedulers reports which of these schedulers a virtual server can name. All of them choose at random.
func (b *Balancer) Schedulers(ctx context.Context, names []string) map[string]bool {
	has := map[string]bool{}
	for _, name := range names {
		if ctx.Err() == nil {
			has[name] = slices.Contains(schedulers, name)
		}
	}
	return has
}

// Timeouts are conntrack's, and not the agent's to set.
func (b *Balancer) Timeouts(context.Context) (kernel.Timeouts, error) { return kernel.Timeouts{}, nil }

// work is one virtual server with operations, of which none has been refused yet.
type work struct {
	key   kernel.ServerKey
	ops   []int
	draft draft
	from  *found // nil if there is nothing
	to    *frontend
}

// Apply executes the operations on virtual servers and destinations, those of many virtual servers in one transaction. If the kernel does
// not hold what the last read and the writes since say, it is read again, once.
func (b *Balancer) Apply(ctx context.Context, ops []kernel.Op) []error {
	errs := make([]error, len(ops))
	if err := ctx.Err(); err != nil {
		return describeAll(ops, errs, err)
	}
	fresh := b.known == nil
	if fresh {
		if err := b.reread(ctx); err != nil {
			return describeAll(ops, errs, err)
		}
	}
	all := make([]int, len(ops))
	for i := range all {
		all[i] = i
	}
	if again := b.try(ctx, ops, all, errs, fresh); len(again) > 0 {
		err := b.reread(ctx)
		for _, i := range again {
			errs[i] = err
		}
		if err == nil {
			b.try(ctx, ops, again, errs, true)
		}
	}
	if b.known != nil && len(b.known.fronts) == 0 {
		b.deleteEmptyTable(ctx)
	}
	for i, err := range errs {
		if err != nil {
			errs[i] = fmt.Errorf("%s: %w", ops[i], err)
		}
	}
	return errs
}

// try executes the chosen operations. It returns those to try again, because what is known may not be what the kernel holds. With sure,
// that is not in doubt.
func (b *Balancer) try(ctx context.Context, ops []kernel.Op, chosen []int, errs []error, sure bool) (again []int) {
	works, surprise := b.prepare(ops, chosen, errs)
	if surprise && !sure {
		return chosen // nothing was written
	}
	if refused := b.write(ctx, works, errs); !refused || sure {
		return nil
	}
	for _, i := range chosen {
		if errs[i] != nil {
			again = append(again, i)
		}
	}
	return again
}

func describeAll(ops []kernel.Op, errs []error, err error) []error {
	for i := range errs {
		errs[i] = fmt.Errorf("%s: %w", ops[i], err)
	}
	return errs
}

func (b *Balancer) reread(ctx context.Context) (err error) {
	b.known, err = b.readContent(ctx)
	return err
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

// prepare works out the frontends that the operations want. surprise is true if one of them found another state than it should.
func (b *Balancer) prepare(ops []kernel.Op, chosen []int, errs []error) (works []*work, surprise bool) {
	byKey := map[kernel.ServerKey]*work{}
	for _, i := range chosen {
		op := ops[i]
		key, ok := keyOf(op)
		if !ok {
			errs[i] = fmt.Errorf("only IPVS has these: %w", kernel.ErrUnavailable)
			continue
		}
		w := byKey[key]
		if w == nil {
			w = newWork(key, b.known.fronts[key])
			byKey[key], works = w, append(works, w)
		}
		changes, err := w.draft.apply(op)
		surprise = surprise || !changes && !errors.As(err, &kernel.InvalidError{})
		if errs[i] = err; err == nil {
			w.ops = append(w.ops, i)
		}
	}
	for _, w := range works {
		if w.draft.exists {
			w.to = w.old().with(w.draft.Server, w.draft.dests)
		}
	}
	return works, surprise
}

func newWork(key kernel.ServerKey, from *found) *work {
	w := &work{key: key, from: from, draft: draft{Server: kernel.Server{Key: key}}}
	switch {
	case from == nil:
	case from.front != nil:
		w.draft = draft{exists: true, Server: from.front.Server, dests: from.front.destinations()}
	case from.recorded.Key.Addr.IsValid():
		w.draft = draft{exists: true, Server: from.recorded}
	}
	return w
}

// old is the frontend before; an empty one if there was none, or none that is whole.
func (w *work) old() *frontend {
	if w.from == nil || w.from.front == nil {
		return &frontend{}
	}
	return w.from.front
}

// maxTransaction bounds the size of a transaction, which is one send.
const maxTransaction = 100 << 10

// write writes the works in transactions, and again without those that the kernel refused.
func (b *Balancer) write(ctx context.Context, works []*work, errs []error) (refused bool) {
	for len(works) > 0 {
		n, failed := b.writeSome(ctx, works)
		if len(failed) == 0 {
			b.settle(ctx, works[:n])
			works = works[n:]
			continue
		}
		refused = true
		// Of a work in several transactions, some may have succeeded.
		if err := b.reread(ctx); err != nil {
			failed[nil] = err
		}
		if failed[nil] != nil {
			for _, w := range works {
				w.fail(errs, failed[nil])
			}
			return true
		}
		works = slices.DeleteFunc(works, func(w *work) bool {
			if failed[w] != nil {
				w.fail(errs, failed[w])
				return true
			}
			w.from = b.known.fronts[w.key]
			return false
		})
	}
	return refused
}

func (w *work) fail(errs []error, err error) {
	for _, i := range w.ops {
		errs[i] = err
	}
}

// writeSome writes as many of the works as fit into one transaction, at least one. An error of work nil concerns all of them.
func (b *Balancer) writeSome(ctx context.Context, works []*work) (n int, failed map[*work]error) {
	reqs := b.prelude(works)
	owners, size := make([]*work, len(reqs)), 0
	for _, r := range reqs {
		size += len(r.Payload)
	}
	for ; n < len(works) && (n == 0 || size < maxTransaction); n++ {
		for _, r := range works[n].requests() {
			size += len(r.Payload)
			reqs, owners = append(reqs, r), append(owners, works[n])
		}
	}
	return n, b.send(ctx, reqs, owners)
}

// prelude creates what the works need: table, maps, and chains that are not complete.
func (b *Balancer) prelude(works []*work) (reqs []nlbatch.Request) {
	made := map[string]bool{}
	for _, w := range works {
		f := w.key.Family()
		if name := balanceChain(f); w.to != nil && !b.known.chains[name] && !made[name] {
			made[name] = true
			reqs = slices.Concat(reqs, []nlbatch.Request{newTable()}, balanceSets(f), entrance(f))
		}
		if w.to == nil {
			continue
		}
		p := w.to.picker()
		if name := p.name(); !b.known.chains[name] && !made[name] {
			made[name] = true
			reqs = append(reqs, p.requests()...)
		}
	}
	return reqs
}

// send runs one transaction, or several if it is too large.
func (b *Balancer) send(ctx context.Context, reqs []nlbatch.Request, owners []*work) map[*work]error {
	failed := map[*work]error{}
	for from := 0; from < len(reqs) && len(failed) == 0; {
		size, to := 0, from
		for ; to < len(reqs) && (to == from || size+len(reqs[to].Payload) < maxTransaction*3/2); to++ {
			size += len(reqs[to].Payload)
		}
		for i, err := range b.conn.Transaction(ctx, begin, reqs[from:to], end) {
			if owner := owners[from+i]; err != nil && failed[owner] == nil {
				failed[owner] = err
			}
		}
		from = to
	}
	return failed
}

// settle records what was written, and ends the affinity to endpoints that are gone.
func (b *Balancer) settle(ctx context.Context, done []*work) {
	for _, w := range done {
		if w.to == nil {
			delete(b.known.fronts, w.key)
			continue
		}
		b.known.fronts[w.key] = &found{front: w.to}
		b.known.chains[w.to.picker().name()] = true
		b.known.chains[balanceChain(w.key.Family())] = true
	}
	b.forget(ctx, done)
}

// forget deletes the affinity of clients to endpoints that get no new connections anymore. Without that they would be sent to a new
// endpoint for each connection until their record expires. An error leaves it at that.
func (b *Balancer) forget(ctx context.Context, done []*work) {
	for _, f := range b.families {
		gone := map[string]bool{}
		for _, w := range done {
			if w.key.Family() != f || w.to == nil {
				continue
			}
			for a := range w.old().ends {
				if _, stays := w.to.ends[a]; !stays {
					gone[string(frontendKey(w.key))+string(endpointBytes(a))] = true
				}
			}
		}
		if len(gone) > 0 {
			_ = b.unstick(ctx, f, gone)
		}
	}
}

func (b *Balancer) unstick(ctx context.Context, f inet.Family, gone map[string]bool) error {
	payloads, err := b.dump(ctx, unix.NFT_MSG_GETSETELEM, elementsOf(sticksMap(f)))
	if err != nil {
		return err
	}
	front := int(addressBytes(f)) + 8
	var stale []entry
	for _, p := range payloads {
		if err := eachEntry(sticksMap(f), p, func(e entry) error {
			if len(e.key) > front && gone[e.key[:front]+e.data] {
				stale = append(stale, e)
			}
			return nil
		}); err != nil {
			return err
		}
	}
	// One request for each: an entry may have expired since.
	for chunk := range slices.Chunk(stale, maxEntries) {
		for _, e := range chunk {
			_ = b.commit(ctx, []nlbatch.Request{entriesRequest(unix.NFT_MSG_DELSETELEM, 0, []entry{e})})
		}
	}
	return nil
}

// Balances says whether the table has chains that balance.
func (b *Backend) Balances(ctx context.Context) (bool, error) {
	chains, err := b.chains(ctx)
	if err != nil {
		return false, fmt.Errorf("read chains: %w", err)
	}
	return slices.ContainsFunc(chains, func(name string) bool {
		return slices.ContainsFunc(inet.Families, func(f inet.Family) bool { return name == balanceChain(f) })
	}), nil
}

// TryBalancing asks the kernel to create maps and chains that balance, and to undo it. This loads the modules that they need.
func (b *Backend) TryBalancing(ctx context.Context) error {
	reqs := []nlbatch.Request{newTable()}
	for _, f := range b.families {
		reqs = slices.Concat(reqs, balanceSets(f), entrance(f))
		for _, p := range []picker{{family: f}, {family: f, slots: 1, timeout: 1, mask: 1}} {
			reqs = append(reqs, p.requests()...)
		}
	}
	for _, err := range b.conn.Transaction(ctx, begin, reqs) {
		if err != nil {
			return fmt.Errorf("balancing: %w", err)
		}
	}
	return nil
}

// balances says whether a rule sends packets to the balancing chains.
func balances(r kernel.Ruleset) bool {
	return slices.ContainsFunc(r.Chains, func(c kernel.Chain) bool {
		return slices.ContainsFunc(c.Rules, func(rule kernel.Rule) bool { return rule.Verdict == kernel.Balance{} })
	})
}

// balancingChain says whether a chain of a Balancer has this name.
func balancingChain(f inet.Family, name string) bool {
	for _, kind := range []string{"balance", "pick", "wide"} {
		if rest, ours := strings.CutPrefix(name, fmt.Sprintf("%s%d", kind, f)); ours && (rest == "" || rest[0] == '.') {
			return true
		}
	}
	return false
}

func balancingMaps(f inet.Family) []string {
	return []string{frontsMap(f), slotsMap(f), endsSet(f), sticksMap(f)}
}

// unused says whether the table has no more than what a Balancer without virtual servers has.
func (b *Backend) unused(ctx context.Context) (bool, error) {
	exists, used, err := b.table(ctx)
	if err != nil || !exists || used == 0 {
		return exists, err
	}
	sets, err := b.sets(ctx)
	if err != nil {
		return false, err
	}
	chains, err := b.chains(ctx)
	if err != nil {
		return false, err
	}
	for _, f := range inet.Families {
		chains = slices.DeleteFunc(chains, func(name string) bool { return balancingChain(f, name) })
		if _, exists := sets[frontsMap(f)]; exists {
			if n, err := (&Summarizer{Backend: b}).countMembers(ctx, frontsMap(f)); err != nil || n > 0 {
				return false, err
			}
		}
		for _, name := range balancingMaps(f) {
			delete(sets, name)
		}
	}
	return len(chains) == 0 && len(sets) == 0, nil
}

// withoutBalancing deletes the chains and maps of a family that no rule uses. Connections keep the endpoints that they have.
func (b *Backend) withoutBalancing(ctx context.Context, f inet.Family, chains []string) []nlbatch.Request {
	var flushes, deletions, sets []nlbatch.Request
	for _, name := range chains {
		if balancingChain(f, name) {
			flushes, deletions = append(flushes, flushChain(name)), append(deletions, deleteChain(name))
		}
	}
	existing, err := b.sets(ctx)
	if err != nil {
		return nil
	}
	for _, name := range balancingMaps(f) {
		if _, exists := existing[name]; exists {
			sets = append(sets, deleteSet(name))
		}
	}
	return slices.Concat(flushes, sets, deletions)
}
