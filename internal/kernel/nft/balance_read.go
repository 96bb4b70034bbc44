package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// found is everything about a frontend in the kernel.
type found struct {
	// front is nil if the elements are not those of a whole frontend.
	front *frontend
	// entries are all elements, if front is nil.
	entries []entry
	// recorded is what could be read of the virtual server, if front is nil; its key is invalid if that is nothing.
	recorded kernel.Server
}

// content is what the maps hold, and which chains are complete.
type content struct {
	fronts map[kernel.ServerKey]*found
	chains map[string]bool
}

// raw collects the elements of a frontend.
type raw struct {
	entries []entry
	front   *entry
	slots   map[uint32]kernel.Destination
	ends    map[netip.AddrPort]struct{}
	err     error
}

func (b *Balancer) readContent(ctx context.Context) (*content, error) {
	c := &content{fronts: map[kernel.ServerKey]*found{}}
	var err error
	if c.chains, err = b.completeChains(ctx); err != nil {
		return nil, fmt.Errorf("read balancing chains: %w", err)
	}
	for _, f := range b.families {
		all := map[kernel.ServerKey]*raw{}
		for _, set := range []string{frontsMap(f), slotsMap(f), endsSet(f)} {
			if err := b.readEntries(ctx, f, set, all); err != nil {
				return nil, fmt.Errorf("read %s: %w", set, err)
			}
		}
		for key, r := range all {
			c.fronts[key] = r.found(key, c.chains)
		}
	}
	return c, nil
}

func (b *Balancer) readEntries(ctx context.Context, f inet.Family, set string, into map[kernel.ServerKey]*raw) error {
	payloads, err := b.dump(ctx, unix.NFT_MSG_GETSETELEM, elementsOf(set))
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	for _, p := range payloads {
		if err := eachEntry(set, p, func(e entry) error { return collect(f, e, into) }); err != nil {
			return err
		}
	}
	return err
}

func collect(f inet.Family, e entry, into map[kernel.ServerKey]*raw) error {
	key, rest, err := parseFrontendKey(f, []byte(e.key))
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
	case frontsMap(f):
		r.front = &e
	case slotsMap(f):
		var d kernel.Destination
		d.Addr, err = parseEndpoint([]byte(e.data))
		err = errors.Join(err, parseSlotComment(e.comment, &d))
		if len(rest) != 4 {
			return errElement
		}
		r.slots[binary.NativeEndian.Uint32(rest)] = d
	case endsSet(f):
		var a netip.AddrPort
		if a, err = parseEndpoint(rest); r.ends == nil {
			r.ends = map[netip.AddrPort]struct{}{}
		}
		r.ends[a] = struct{}{}
	}
	r.err = errors.Join(r.err, err)
	return nil
}

// found assembles the frontend, and leaves it out unless every element is as this program writes it.
func (r *raw) found(key kernel.ServerKey, complete map[string]bool) *found {
	broken := &found{entries: r.entries}
	if r.front == nil {
		return broken
	}
	f := &frontend{Server: kernel.Server{Key: key}, ends: r.ends}
	idle, err := parseFrontComment(r.front.comment, &f.Server)
	broken.recorded = f.Server
	if err != nil || r.err != nil || idle < 0 || idle > len(r.slots) {
		return broken
	}
	for n := range uint32(len(r.slots) - idle) {
		f.slots = append(f.slots, r.slots[n])
	}
	for n := range uint32(idle) {
		f.idle = append(f.idle, r.slots[firstIdle+n])
	}
	if f.persistent() && f.ends == nil {
		f.ends = map[netip.AddrPort]struct{}{}
	}
	name := f.picker().name()
	if r.front.chain != name || !complete[name] || !complete[balanceChain(key.Family())] || !f.sound() {
		return broken
	}
	return &found{front: f}
}

// completeChains lists the balancing chains that have all their rules in order.
func (b *Balancer) completeChains(ctx context.Context) (map[string]bool, error) {
	payloads, err := b.dump(ctx, unix.NFT_MSG_GETRULE, nlbatch.AppendString(nil, unix.NFTA_RULE_TABLE, Table))
	if errors.Is(err, unix.ENOENT) {
		return map[string]bool{}, nil
	}
	texts := map[string][]string{}
	for _, p := range payloads {
		table, chain, text, err := decodeRule(p)
		if err != nil {
			return nil, err
		}
		if _, _, ofRules := parseChain(chain); table == Table && !ofRules {
			texts[chain] = append(texts[chain], text)
		}
	}
	complete := map[string]bool{}
	for chain, comments := range texts {
		of := 1
		if strings.Contains(chain, "s.") || strings.HasPrefix(chain, "balance") {
			of = 2
		}
		complete[chain] = len(comments) == of
		for i, text := range comments {
			complete[chain] = complete[chain] && text == ruleComment(i, of)
		}
	}
	return complete, err
}

// brokenScheduler is what a reader sees of a frontend whose elements or chain another program changed: writing it again repairs it.
const brokenScheduler = "broken"

func (f *found) observed(limits bool) (kernel.ObservedServer, bool) {
	if f.front != nil {
		return f.front.observed(limits), true
	}
	s := kernel.ObservedServer{Server: f.recorded}
	s.Scheduler = brokenScheduler
	return s, f.recorded.Key.Addr.IsValid()
}

// Read returns all frontends as virtual servers.
func (b *Balancer) Read(ctx context.Context) (map[kernel.ServerKey]kernel.ObservedServer, error) {
	c, err := b.readContent(ctx)
	if err != nil {
		return nil, err
	}
	servers := make(map[kernel.ServerKey]kernel.ObservedServer, len(c.fronts))
	for key, f := range c.fronts {
		if o, exists := f.observed(false); exists {
			servers[key] = o
		}
	}
	return servers, nil
}

// Lookup returns those of the virtual servers that exist, with their connection limits. It reads their elements only.
func (b *Balancer) Lookup(ctx context.Context, keys []kernel.ServerKey) (map[kernel.ServerKey]kernel.ObservedServer, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	result := map[kernel.ServerKey]kernel.ObservedServer{}
	if len(keys) == 0 {
		return result, nil
	}
	complete, err := b.completeChains(ctx)
	if err != nil {
		return nil, fmt.Errorf("read balancing chains: %w", err)
	}
	for _, key := range keys {
		r, err := b.lookup(ctx, key)
		if err != nil {
			return nil, fmt.Errorf("look up virtual server %s: %w", key, err)
		}
		if r == nil {
			continue
		}
		if o, exists := r.found(key, complete).observed(true); exists {
			result[key] = o
		}
	}
	return result, nil
}

// lookup reads the front, then the slots that it says there are, then the ends of their endpoints.
func (b *Balancer) lookup(ctx context.Context, key kernel.ServerKey) (*raw, error) {
	f, all := key.Family(), map[kernel.ServerKey]*raw{}
	if err := b.get(ctx, f, []entry{{set: frontsMap(f), key: string(frontendKey(key))}}, all); err != nil || all[key] == nil {
		return nil, err
	}
	var s kernel.Server
	idle, err := parseFrontComment(all[key].front.comment, &s)
	if err != nil {
		return all[key], nil
	}
	var asked []entry
	for n := range slotsIn(all[key].front.chain) {
		asked = append(asked, slotEntry(key, n, kernel.Destination{Addr: key.Addr}))
	}
	for n := range uint32(idle) {
		asked = append(asked, slotEntry(key, firstIdle+n, kernel.Destination{Addr: key.Addr}))
	}
	if err := b.get(ctx, f, asked, all); err != nil {
		return nil, err
	}
	if front := (&frontend{Server: s}); !front.persistent() {
		return all[key], nil
	}
	asked = nil
	for n, d := range all[key].slots {
		if n < firstIdle {
			asked = append(asked, endEntry(key, d.Addr))
		}
	}
	return all[key], b.get(ctx, f, asked, all)
}

// slotsIn reads the number of slots from the name of a chain.
func slotsIn(chain string) (n uint32) {
	_, rest, _ := strings.Cut(chain, ".")
	_, _ = fmt.Sscanf(rest, "%d", &n)
	return n
}

// get asks for single elements.
func (b *Balancer) get(ctx context.Context, f inet.Family, asked []entry, into map[kernel.ServerKey]*raw) error {
	reqs := make([]nlbatch.Request, len(asked))
	for i := range asked {
		reqs[i] = entriesRequest(unix.NFT_MSG_GETSETELEM, 0, asked[i:i+1])
	}
	answers, errs := b.conn.Get(ctx, reqs)
	for i, messages := range answers {
		if errs[i] != nil && !errors.Is(errs[i], unix.ENOENT) {
			return errs[i]
		}
		for _, m := range messages {
			if err := eachEntry(asked[i].set, m.Payload, func(e entry) error { return collect(f, e, into) }); err != nil {
				return err
			}
		}
	}
	return nil
}

// CountIPv4 counts the IPv4 frontends.
func (b *Balancer) CountIPv4(ctx context.Context) (int, error) {
	payloads, err := b.dump(ctx, unix.NFT_MSG_GETSET, nlbatch.AppendString(nil, unix.NFTA_SET_TABLE, Table))
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return 0, fmt.Errorf("count virtual servers: %w", err)
	}
	for _, p := range payloads {
		table, name, err := names(p, unix.NFTA_SET_TABLE, unix.NFTA_SET_NAME)
		if err != nil {
			return 0, err
		}
		if table == Table && name == frontsMap(inet.IPv4) {
			if n, known, err := memberCount(p); err != nil || known {
				return n, err
			}
			return (&Summarizer{Backend: b.Backend}).countMembers(ctx, name)
		}
	}
	return 0, nil
}
