package balance

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/wire"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// found is the kernel state of one frontend.
type found struct {
	// frontend is nil if elements or rules of the frontend are missing or wrong.
	frontend *frontend
	// entries contains all elements of the frontend if frontend is nil.
	entries []entry
	// parts contains what could be read of the virtual server and its destinations if frontend is nil. The key is invalid if nothing could be
	// read.
	parts frontend
	// unsure is true if parts may lack removed endpoints.
	unsure bool
}

type content struct {
	frontends map[kernel.ServerKey]*found
	chains    comments
	torn      bool // the list of rules may lack some
}

// doubts reports whether the lists may lack parts of the frontend.
func (c *content) doubts(f *found) bool {
	return f.frontend == nil || c.torn && f.frontend.hasAffinity()
}

// comments contains the rule comments of each chain. They show whether the chain is complete.
type comments map[string][]string

// lead notes that an element leads to a chain.
func (c comments) lead(e entry) {
	if p, picks := pickerOf(e.Chain); picks && e == *p.entry() {
		c[e.Chain] = append(c[e.Chain], led)
	}
}

// ofVersion010 reports whether version 0.1.0 wrote the chain that looks up frontends. It does not look at the map of numbers, whose elements are
// outdated if an older agent has replaced a newer one.
func (c comments) ofVersion010(f inet.Family) bool {
	return slices.Equal(c[Entrance(f)], old(sharedComments[Entrance(f)]))
}

func (c comments) have(want Chain) bool { return slices.Equal(c[want.Name], want.comments()) }

// raw contains the elements of a frontend before they are checked.
type raw struct {
	entries  []entry
	numbered *entry // in the map of numbers
	named    *entry // in the map of frontends
	slots    map[uint32]kernel.Destination
	record   string // the chain that records clients
	err      error
}

// readContent reads all maps and chains. Lists can miss existing elements and rules (see wire), so readContent looks up incomplete
// frontends and the given keys that the lists miss.
func (b *Balancer) readContent(ctx context.Context, keys []kernel.ServerKey) (*content, error) {
	c, err := b.readLists(ctx)
	if err != nil {
		return nil, err
	}
	for key, f := range c.frontends {
		if c.doubts(f) {
			keys = append(keys[:len(keys):len(keys)], key)
		}
	}
	chains := comments{}
	for _, key := range keys {
		if f := c.frontends[key]; f != nil && !c.doubts(f) {
			continue
		}
		r, err := b.lookup(ctx, key, chains)
		if err != nil {
			return nil, fmt.Errorf("look up virtual server %s: %w", key, err)
		}
		if r == nil {
			continue
		}
		if f := r.found(key, chains); f.frontend != nil || c.frontends[key] == nil {
			c.frontends[key] = f
		}
	}
	maps.Copy(c.chains, chains)
	return c, nil
}

func (b *Balancer) readLists(ctx context.Context) (*content, error) {
	c := &content{frontends: map[kernel.ServerKey]*found{}}
	var err error
	if c.chains, err = b.readComments(ctx, ""); c.chains == nil {
		return nil, fmt.Errorf("read balancing chains: %w", err)
	}
	c.torn = err != nil
	for _, f := range b.families {
		all := map[kernel.ServerKey]*raw{}
		for _, set := range sharedMapNames[f] {
			if err := b.readEntries(ctx, f, set, all, c.chains); err != nil {
				return nil, fmt.Errorf("read %s: %w", set, err)
			}
		}
		for key, r := range all {
			c.frontends[key] = r.found(key, c.chains)
		}
	}
	return c, nil
}

func (b *Balancer) readEntries(ctx context.Context, f inet.Family, set string, into map[kernel.ServerKey]*raw, chains comments) error {
	err := b.conn.Elements(ctx, wire.Set(set), func(e wire.Element) error { return collect(f, entry{set, e}, into, chains) })
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

func collect(f inet.Family, e entry, into map[kernel.ServerKey]*raw, chains comments) error {
	if e.set == pickersMap(f) {
		chains.lead(e)
		return nil
	}
	key, rest, err := parseFrontendKey(f, []byte(e.Key))
	if err != nil {
		return err
	}
	r := into[key]
	if r == nil {
		r = &raw{slots: map[uint32]kernel.Destination{}}
		into[key] = r
	}
	r.entries = append(r.entries, e)
	switch e.set {
	case numbersMap(f):
		r.numbered = &e
	case frontendsMap(f):
		r.named = &e
	case recordMap(f):
		r.record = e.Chain
	case slotsMap(f):
		var d kernel.Destination
		d.Addr, err = parseEndpoint([]byte(e.Value))
		err = errors.Join(err, parseSlotComment(e.Comment, &d))
		if len(rest) != 4 {
			return errElement
		}
		if err == nil {
			r.slots[binary.NativeEndian.Uint32(rest)] = d
		}
	}
	r.err = errors.Join(r.err, err)
	return nil
}

// found assembles the frontend. It rejects a frontend with any element that the agent would write differently.
func (r *raw) found(key kernel.ServerKey, chains comments) *found {
	broken, numbered := &found{entries: r.entries}, r.numbered
	if chains.ofVersion010(key.Family()) {
		numbered = nil
		broken.entries = slices.DeleteFunc(slices.Clone(r.entries), func(e entry) bool { return e.set == numbersMap(key.Family()) })
	}
	at := cmp.Or(numbered, r.named)
	if at == nil || numbered != nil && r.named != nil {
		return broken
	}
	f := &frontend{Server: kernel.Server{Key: key}}
	slots, idle, err := parseFrontendComment(at.Comment, &f.Server)
	broken.parts.Server = f.Server
	if err == nil {
		broken.unsure = r.collectParts(&broken.parts, slots, idle, chains)
	}
	if err != nil || r.err != nil || uint64(slots)+uint64(idle) != uint64(len(r.slots)) {
		return broken
	}
	f.slots, f.idle = r.destinations(0, slots), r.destinations(firstIdle, idle)
	if f.hasAffinity() {
		f.gone = goneIn(chains[f.chain()])
	}
	named := numbered == nil
	f.old = named && !f.hasAffinity()
	if *at != *frontendEntry(f) || r.record != f.recordChain() || !chains.complete(f, named) || !f.hasRightSlots() {
		return broken
	}
	return &found{frontend: f}
}

// collectParts collects the destinations of a frontend that may be broken, each once. If the chains for affinity are incomplete, rules about removed
// endpoints may be missing.
func (r *raw) collectParts(into *frontend, slots, idle uint32, chains comments) (unsure bool) {
	for n, d := range r.slots {
		switch {
		case n < min(slots, firstIdle):
			into.slots = append(into.slots, d)
		case n >= firstIdle && n-firstIdle < idle:
			into.idle = append(into.idle, d)
		}
	}
	for _, all := range []*[]kernel.Destination{&into.slots, &into.idle} {
		slices.SortFunc(*all, kernel.Destination.Compare)
		*all = slices.CompactFunc(*all, func(a, b kernel.Destination) bool { return a.Addr == b.Addr })
	}
	if !into.hasAffinity() {
		return false
	}
	into.gone = goneIn(chains[into.chain()])
	wrote := into.affinity()
	wrote.pick.slots = int(slots)
	return slices.ContainsFunc(wrote.chains(), func(c Chain) bool { return !chains.have(c) })
}

func (r *raw) destinations(first, n uint32) (all []kernel.Destination) {
	for i := range n {
		all = append(all, r.slots[first+i])
	}
	return all
}

// complete reports whether the chains of the frontend are complete. A frontend that is in the map of names may still have chains of version 0.1.0.
func (c comments) complete(f *frontend, named bool) bool {
	whole := func(name string, want []string) bool {
		return slices.Equal(c[name], want) || named && slices.Equal(c[name], old(want))
	}
	if !whole(f.picker().name(), f.picker().comments()) {
		return false
	}
	for _, chain := range shared[f.Key.Family()] {
		if !whole(chain.Name, sharedComments[chain.Name]) {
			return false
		}
	}
	return !f.hasAffinity() || !slices.ContainsFunc(f.affinity().chains(), func(chain Chain) bool { return !c.have(chain) })
}

// readComments reads the comments of all chains, or of one. If the list may lack rules, it returns the list and ErrDumpInterrupted. A frontend with
// an incomplete chain is then looked up. A chain of a frontend with affinity looks complete if only rules about removed endpoints are missing.
func (b *Balancer) readComments(ctx context.Context, only string) (comments, error) {
	rules, err := b.conn.Rules(ctx, wire.Chain(only))
	if err != nil && !errors.Is(err, nlbatch.ErrDumpInterrupted) {
		return nil, err
	}
	all := comments{}
	for _, r := range rules {
		all[r.Chain] = append(all[r.Chain], r.Comment)
	}
	return all, err
}

// BrokenScheduler marks a frontend whose elements or chains another program changed. diff then writes the frontend again.
const BrokenScheduler = "broken"

func (f *found) observed(limits bool) (kernel.ObservedServer, bool) {
	if f.frontend != nil {
		return f.frontend.observed(limits), true
	}
	s := f.parts.observed(limits) // with its destinations: if diff had to create them again, there would be none for a moment
	s.Scheduler = BrokenScheduler
	return s, f.parts.Key.Addr.IsValid()
}

// Read returns all frontends as virtual servers.
func (b *Balancer) Read(ctx context.Context) (map[kernel.ServerKey]kernel.ObservedServer, error) {
	c, err := b.readContent(ctx, nil)
	if err != nil {
		return nil, err
	}
	servers := make(map[kernel.ServerKey]kernel.ObservedServer, len(c.frontends))
	left := map[kernel.ServerKey]struct{}{}
	for key, f := range c.frontends {
		if o, exists := f.observed(false); exists {
			servers[key] = o
		}
		if f.frontend != nil && len(f.frontend.gone) > 0 { // an earlier agent may have removed the endpoints
			left[key] = struct{}{}
		}
	}
	b.left.replace(left)
	return servers, nil
}

// Lookup returns the existing virtual servers with these keys, including connection limits. It reads only the
// elements of these virtual servers.
func (b *Balancer) Lookup(ctx context.Context, keys []kernel.ServerKey) (map[kernel.ServerKey]kernel.ObservedServer, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	result := map[kernel.ServerKey]kernel.ObservedServer{}
	if len(keys) == 0 {
		return result, nil
	}
	chains := comments{}
	for _, key := range keys {
		r, err := b.lookup(ctx, key, chains)
		if err != nil {
			return nil, fmt.Errorf("look up virtual server %s: %w", key, err)
		}
		if r == nil {
			continue
		}
		if o, exists := r.found(key, chains).observed(true); exists {
			result[key] = o
		}
	}
	return result, nil
}

// mostRead is the maximum number of slots that lookup reads. Another program may have written a comment with a huge number.
const mostRead = 1 << 18

// lookup reads the element of the frontend, then the slots and chains that the element names. It adds each chain that it reads to chains.
func (b *Balancer) lookup(ctx context.Context, key kernel.ServerKey, chains comments) (*raw, error) {
	f, all := key.Family(), map[kernel.ServerKey]*raw{}
	of := wire.Element{Key: string(frontendKey(key))}
	if err := b.getEntries(ctx, f, []entry{{numbersMap(f), of}, {frontendsMap(f), of}}, all, chains); err != nil || all[key] == nil {
		return nil, err
	}
	needed, slots, idle := slices.Clone(shared[f]), uint32(0), uint32(0)
	for _, at := range []*entry{all[key].numbered, all[key].named} {
		if at == nil {
			continue
		}
		front := &frontend{Server: kernel.Server{Key: key}}
		n, m, err := parseFrontendComment(at.Comment, &front.Server)
		if err != nil || n > mostRead || m > mostRead {
			return all[key], nil
		}
		front.slots = make([]kernel.Destination, n)
		needed, slots, idle = append(needed, front.chains()...), max(slots, n), max(idle, m)
	}
	asked := []entry{{recordMap(f), of}}
	for n := range slots {
		asked = append(asked, slotEntry(key, n, kernel.Destination{Addr: key.Addr}))
	}
	for n := range idle {
		asked = append(asked, slotEntry(key, firstIdle+n, kernel.Destination{Addr: key.Addr}))
	}
	for _, c := range needed {
		if _, known := chains[c.Name]; known {
			continue
		}
		read, err := b.readComments(ctx, c.Name)
		if read == nil {
			return nil, fmt.Errorf("read chain %s: %w", c.Name, err)
		}
		if chains[c.Name] = read[c.Name]; c.from != nil {
			asked = append(asked, entry{c.from.set, wire.Element{Key: c.from.Key}})
		}
	}
	return all[key], b.getEntries(ctx, f, asked, all, chains)
}

func (b *Balancer) getEntries(ctx context.Context, f inet.Family, asked []entry, into map[kernel.ServerKey]*raw, chains comments) error {
	reqs := make([]nlbatch.Request, len(asked))
	for i := range asked {
		reqs[i] = entriesRequest(unix.NFT_MSG_GETSETELEM, 0, asked[i])
	}
	answers, err := b.conn.Get(ctx, reqs)
	if err != nil {
		return err
	}
	for i, messages := range answers {
		for _, m := range messages {
			if err := wire.EachElement(m.Payload, func(e wire.Element) error { return collect(f, entry{asked[i].set, e}, into, chains) }); err != nil {
				return err
			}
		}
	}
	return nil
}

// CountIPv4 counts the IPv4 frontends, unless counting is slow and the last count was recent.
func (b *Balancer) CountIPv4(ctx context.Context) (int, error) {
	names := sharedMapNames[inet.IPv4][:2]
	sets, err := b.conn.Count(ctx, names)
	n := 0
	for _, name := range names {
		if sets[name].Elements == kernel.Uncounted {
			return kernel.Uncounted, err
		}
		n += sets[name].Elements
	}
	return n, err
}

// Records counts the recorded clients of all frontends with affinity.
func (b *Balancer) Records(ctx context.Context) (n int, err error) {
	existing, err := b.conn.Sets(ctx)
	if err != nil {
		return 0, fmt.Errorf("read maps: %w", err)
	}
	for name := range existing {
		if !strings.HasPrefix(name, clients) {
			continue
		}
		if err := b.conn.Elements(ctx, wire.Set(name), func(wire.Element) error { n++; return nil }); err != nil && !errors.Is(err, unix.ENOENT) {
			return n, fmt.Errorf("count %s: %w", name, err)
		}
	}
	return n, nil
}
