package sockets

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kube-ipvs/kube-ipvs/internal/forward"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// table contains virtual servers and sets. A virtual server exists only while its port is as it should be: open if it
// has an endpoint for new clients and no set closes it. Its methods are safe for concurrent use.
type table struct {
	forwarder *forward.Forwarder
	admission kernel.Admission

	mu      sync.Mutex
	servers map[kernel.ServerKey]kernel.ObservedServer
	sets    map[string]kernel.Set
	members kernel.Members

	// node contains the node's own addresses. The forwarder reads it while mu is locked.
	node atomic.Pointer[[]netip.Addr]
}

// newTable returns an empty table.
func newTable(forwarder *forward.Forwarder, admission kernel.Admission) *table {
	return &table{
		forwarder: forwarder, admission: admission, servers: map[kernel.ServerKey]kernel.ObservedServer{},
		sets: map[string]kernel.Set{}, members: kernel.Members{},
	}
}

// nodeAddresses returns the node's own addresses.
func (t *table) nodeAddresses() []netip.Addr {
	if all := t.node.Load(); all != nil {
		return *all
	}
	return nil
}

func (t *table) keys() []kernel.ServerKey {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Keys(t.servers))
}

// Read adds the table to a state.
func (t *table) Read(s *kernel.State) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.Servers, s.Sets = maps.Clone(t.servers), maps.Clone(t.sets)
	s.Members = make(map[string]map[kernel.Element]struct{}, len(t.members))
	for name, members := range t.members {
		s.Members[name] = maps.Clone(members)
	}
}

// Summarize adds the table to a summary.
func (t *table) Summarize(sample kernel.Sample, s *kernel.Summary) {
	s.Servers, s.Members = t.Lookup(sample.Servers), t.LookupMembers(sample.Members)
	t.mu.Lock()
	defer t.mu.Unlock()
	s.IPv4Servers, s.Sets = 0, make(map[string]kernel.SetSummary, len(t.sets))
	for key := range t.servers {
		if key.Family() == inet.IPv4 {
			s.IPv4Servers++
		}
	}
	for name, set := range t.sets {
		s.Sets[name] = kernel.SetSummary{Set: set, Members: len(t.members[name])}
	}
}

// Lookup returns the given virtual servers that exist.
func (t *table) Lookup(keys []kernel.ServerKey) map[kernel.ServerKey]kernel.ObservedServer {
	t.mu.Lock()
	defer t.mu.Unlock()
	found := map[kernel.ServerKey]kernel.ObservedServer{}
	for _, key := range keys {
		if s, exists := t.servers[key]; exists {
			found[key] = s
		}
	}
	return found
}

// LookupMembers returns the given members that exist.
func (t *table) LookupMembers(members []kernel.Member) map[kernel.Member]struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	found := map[kernel.Member]struct{}{}
	for _, m := range members {
		if _, exists := t.members[m.Set][m.Element]; exists {
			found[m] = struct{}{}
		}
	}
	return found
}

// Apply tries every operation in order and returns one result per operation: an error or nil. Ports open, change and
// close after the last operation. If a port cannot be opened, its virtual server is removed, and each operation on the
// port returns the error.
func (t *table) Apply(ctx context.Context, ops []kernel.Op) []error {
	t.mu.Lock()
	defer t.mu.Unlock()
	errs := make([]error, len(ops))
	changed := map[kernel.ServerKey][]int{} // the operations on each port
	for i, op := range ops {
		if errs[i] = ctx.Err(); errs[i] != nil {
			continue
		}
		var key kernel.ServerKey
		if key, errs[i] = t.apply(op); errs[i] == nil && key.Addr.IsValid() {
			changed[key] = append(changed[key], i)
		}
	}
	for key, of := range changed {
		if err := t.serve(key); err != nil {
			delete(t.servers, key)
			for _, i := range of {
				errs[i] = err
			}
		}
	}
	for i, err := range errs {
		if err != nil {
			errs[i] = fmt.Errorf("%s: %w", ops[i].In(kernel.Userspace), err)
		}
	}
	return errs
}

// apply returns the port that the operation affects; zero if none.
func (t *table) apply(op kernel.Op) (kernel.ServerKey, error) {
	switch obj := op.Object.(type) {
	case kernel.Set:
		return kernel.ServerKey{}, t.applySet(op.Verb, obj)
	case kernel.Member:
		return t.applyMember(op.Verb, obj)
	case kernel.Server:
		return obj.Key, t.applyServer(op.Verb, obj)
	case kernel.ServerDestination:
		return obj.Server, t.applyDestination(op.Verb, obj)
	case kernel.Timeouts:
		return kernel.ServerKey{}, nil
	}
	return kernel.ServerKey{}, errors.ErrUnsupported
}

func (t *table) applySet(verb kernel.Verb, set kernel.Set) error {
	_, exists := t.sets[set.Name]
	switch {
	case verb == kernel.Delete:
		delete(t.sets, set.Name)
		delete(t.members, set.Name)
		return nil
	case verb == kernel.Create && exists:
		return kernel.ErrExists
	case verb == kernel.Update && !exists:
		return kernel.ErrNotFound
	}
	t.sets[set.Name] = set
	if !exists {
		t.members[set.Name] = map[kernel.Element]struct{}{}
	}
	return nil
}

func (t *table) applyMember(verb kernel.Verb, m kernel.Member) (kernel.ServerKey, error) {
	members, exists := t.members[m.Set]
	switch {
	case verb == kernel.Delete:
		delete(members, m.Element)
	case !exists:
		return kernel.ServerKey{}, kernel.ErrNotFound
	default:
		members[m.Element] = struct{}{}
	}
	if m.Element.Protocol == 0 {
		return kernel.ServerKey{}, nil
	}
	return kernel.ServerKey{Addr: netip.AddrPortFrom(m.Element.Addr, m.Element.Port), Protocol: m.Element.Protocol}, nil
}

func (t *table) applyServer(verb kernel.Verb, s kernel.Server) error {
	old, exists := t.servers[s.Key]
	switch {
	case verb == kernel.Delete:
		delete(t.servers, s.Key)
		return nil
	case verb == kernel.Create && exists:
		return kernel.ErrExists
	case verb == kernel.Update && !exists:
		return kernel.ErrNotFound
	}
	t.servers[s.Key] = kernel.ObservedServer{Server: s, Destinations: old.Destinations}
	return nil
}

func (t *table) applyDestination(verb kernel.Verb, d kernel.ServerDestination) error {
	s, exists := t.servers[d.Server]
	if !exists {
		if verb == kernel.Delete {
			return nil
		}
		return fmt.Errorf("virtual server: %w", kernel.ErrNotFound)
	}
	i, found := slices.BinarySearchFunc(s.Destinations, d.Addr, func(o kernel.ObservedDestination, a netip.AddrPort) int { return o.Addr.Compare(a) })
	list := slices.Clone(s.Destinations) // earlier reads share the old one
	switch {
	case verb == kernel.Delete && !found:
		return nil
	case verb == kernel.Delete:
		list = slices.Delete(list, i, i+1)
	case verb == kernel.Create && found:
		return kernel.ErrExists
	case verb == kernel.Update && !found:
		return kernel.ErrNotFound
	case verb == kernel.Create:
		list = slices.Insert(list, i, kernel.ObservedDestination{Destination: d.Destination})
	default:
		list[i].Destination = d.Destination
	}
	s.Destinations = list
	t.servers[d.Server] = s
	return nil
}
