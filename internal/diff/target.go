package diff

import (
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Target is what the kernel should contain now: the wanted state without virtual servers whose key belongs to a foreign virtual server,
// plus earlier virtual servers that linger. Only Decide and Follow change it.
type Target struct {
	want *want.State
	// foreign contains the wanted virtual servers whose key belongs to a foreign virtual server. The agent does not write them (I5), or
	// anything that depends on them.
	foreign map[kernel.ServerKey]*want.Server
	// lingering contains old virtual servers that stay for their open connections. They exist if a Service has changed which of its ports
	// share client affinity, because the kernel cannot change a virtual server's port. lingersAt lists their keys by address.
	lingering map[kernel.ServerKey]*want.Server
	lingersAt map[netip.Addr][]kernel.ServerKey
	// members maps each member to the difference between its number of users here and in the wanted state.
	members map[kernel.Member]int
}

// NewTarget returns the target for a wanted state without foreign or lingering virtual servers.
func NewTarget(w *want.State) *Target {
	return &Target{
		want: w, foreign: map[kernel.ServerKey]*want.Server{}, lingering: map[kernel.ServerKey]*want.Server{},
		lingersAt: map[netip.Addr][]kernel.ServerKey{}, members: map[kernel.Member]int{},
	}
}

// Base returns the part that does not depend on Services.
func (t *Target) Base() *want.Base { return &t.want.Base }

// Set returns our set with this name.
func (t *Target) Set(name string) (want.Set, bool) { return t.want.Set(name) }

// Server returns the wanted virtual server with the key, or nil.
func (t *Target) Server(key kernel.ServerKey) *want.Server {
	if server := t.lingering[key]; server != nil {
		return server
	}
	if t.foreign[key] != nil {
		return nil
	}
	return t.want.Servers[key]
}

// Servers iterates over all virtual servers, in no particular order.
func (t *Target) Servers(yield func(kernel.ServerKey, *want.Server) bool) {
	for key, server := range t.want.Servers {
		if t.foreign[key] == nil && !yield(key, server) {
			return
		}
	}
	for key, server := range t.lingering {
		if !yield(key, server) {
			return
		}
	}
}

// Limited iterates over the virtual servers that have a destination with a connection limit, in no particular order.
func (t *Target) Limited(yield func(kernel.ServerKey) bool) {
	for key := range t.want.Limited() {
		if t.foreign[key] == nil && !yield(key) {
			return
		}
	}
	for key, server := range t.lingering {
		if server.Limited() && !yield(key) {
			return
		}
	}
}

// Stopped iterates over the virtual servers that have a destination with weight 0, except for those that linger, in no particular order.
func (t *Target) Stopped(yield func(kernel.ServerKey, *want.Server) bool) {
	for key, server := range t.want.Stopped() {
		if t.foreign[key] == nil && !yield(key, server) {
			return
		}
	}
}

// Keys lists the keys of all virtual servers, sorted.
func (t *Target) Keys() []kernel.ServerKey {
	keys := make([]kernel.ServerKey, 0, t.Count())
	for key := range t.Servers {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, kernel.ServerKey.Compare)
	return keys
}

// Count counts the virtual servers.
func (t *Target) Count() int { return len(t.want.Servers) - len(t.foreign) + len(t.lingering) }

// Foreign returns the wanted virtual servers whose key belongs to a foreign virtual server. They are not written.
func (t *Target) Foreign() map[kernel.ServerKey]*want.Server { return t.foreign }

// Lingering iterates over the keys of the virtual servers that linger, in no particular order.
func (t *Target) Lingering() iter.Seq[kernel.ServerKey] { return maps.Keys(t.lingering) }

// Lingers reports whether a virtual server lingers.
func (t *Target) Lingers(key kernel.ServerKey) bool { return t.lingering[key] != nil }

// HasMember reports whether a set should contain the member.
func (t *Target) HasMember(m kernel.Member) bool { return t.want.Count(m)+t.members[m] > 0 }

// Members iterates over the members of sets, in no particular order.
func (t *Target) Members(yield func(kernel.Member) bool) {
	for m := range t.want.Members {
		if (len(t.members) == 0 || t.HasMember(m)) && !yield(m) {
			return
		}
	}
	for m, more := range t.members {
		if more > 0 && t.want.Count(m) == 0 && !yield(m) {
			return
		}
	}
}

// ServersAt lists the virtual servers that need the address on kube-ipvs0, in no particular order. The caller must not change the list.
func (t *Target) ServersAt(a netip.Addr) []kernel.ServerKey {
	at := t.want.ServersAt(a)
	if len(t.foreign) > 0 {
		at = slices.DeleteFunc(slices.Clone(at), func(key kernel.ServerKey) bool { return t.foreign[key] != nil })
	}
	if lingering := t.lingersAt[a]; len(lingering) > 0 {
		at = slices.Concat(at, lingering)
	}
	return at
}

// HasAddress reports whether the address should be on kube-ipvs0.
func (t *Target) HasAddress(a netip.Addr) bool { return len(t.ServersAt(a)) > 0 }

// Addresses iterates over the addresses that should be on kube-ipvs0, in no particular order.
func (t *Target) Addresses(yield func(netip.Addr) bool) {
	for a := range t.want.Addresses {
		if (len(t.foreign) == 0 || t.HasAddress(a)) && !yield(a) {
			return
		}
	}
	for a := range t.lingersAt {
		if len(t.want.ServersAt(a)) == 0 && !yield(a) {
			return
		}
	}
}

// Match returns the key of the virtual server matched by new connections to a port.
func (t *Target) Match(port kernel.ServerKey) kernel.ServerKey {
	return kernel.MatchKey(port, func(key kernel.ServerKey) bool { return t.Serves(key, port) })
}

// Serves reports whether there should be a virtual server that serves the port.
func (t *Target) Serves(key, port kernel.ServerKey) bool {
	server := t.Server(key)
	return server != nil && server.Serves(port)
}

// Ports returns the ports whose new connections match an all-ports server.
func (t *Target) Ports(key kernel.ServerKey) []uint16 {
	server := t.Server(key)
	if server == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(server.Ports), func(number uint16) bool {
		port := kernel.ServerKey{Addr: netip.AddrPortFrom(key.Addr.Addr(), number), Protocol: key.Protocol}
		return t.Match(port) != key
	})
}

// TouchWithNeeds marks a virtual server and the entries that its destinations need. A plan for only the virtual server would not show that the
// kernel has refused a guard of its port, or the record of its limits.
func (t *Target) TouchWithNeeds(key kernel.ServerKey, touched *want.Touched) {
	touched.Servers[key] = struct{}{}
	server := t.Server(key)
	if server == nil {
		return
	}
	touched.Members[want.LedgerEntry(t.Base().Ledger, key)] = struct{}{}
	for _, m := range server.Members {
		if set, _ := t.Set(m.Set); set.Timing == want.Guard || isOneOf(t.Base().Limited, m.Set) {
			touched.Members[m] = struct{}{}
		}
	}
}

// Touch marks a virtual server, its entries and its address as touched.
func (t *Target) Touch(key kernel.ServerKey, touched *want.Touched) {
	if server := t.Server(key); server != nil {
		t.touch(server, 0, touched)
	}
}

// Follow applies a change to the wanted state. The virtual servers of a new fragment are no longer considered foreign, and replace
// lingering virtual servers with the same keys.
func (t *Target) Follow(touched *want.Touched) {
	for key := range touched.Servers {
		if server := t.foreign[key]; server != nil && t.want.Servers[key] != server {
			t.forget(server, touched)
		}
		if t.want.Servers[key] != nil {
			t.dismiss(key, touched)
		}
	}
}

// occupy records that a foreign virtual server has the key.
func (t *Target) occupy(key kernel.ServerKey, touched *want.Touched) {
	t.dismiss(key, touched)
	if server := t.Server(key); server != nil {
		t.foreign[key] = server
		t.touch(server, -1, touched)
	}
}

func (t *Target) forget(server *want.Server, touched *want.Touched) {
	delete(t.foreign, server.Key)
	t.touch(server, +1, touched)
}

func (t *Target) linger(server *want.Server, touched *want.Touched) {
	if t.foreign[server.Key] != nil {
		return
	}
	t.lingering[server.Key] = server
	if addr := server.Key.Addr.Addr(); !server.Unbound {
		t.lingersAt[addr] = append(t.lingersAt[addr], server.Key)
	}
	t.touch(server, +1, touched)
}

func (t *Target) dismiss(key kernel.ServerKey, touched *want.Touched) {
	server := t.lingering[key]
	if server == nil {
		return
	}
	delete(t.lingering, key)
	addr := key.Addr.Addr()
	t.lingersAt[addr] = slices.DeleteFunc(t.lingersAt[addr], func(k kernel.ServerKey) bool { return k == key })
	if len(t.lingersAt[addr]) == 0 {
		delete(t.lingersAt, addr)
	}
	t.touch(server, -1, touched)
}

// touch also changes the counts of the virtual server's members.
func (t *Target) touch(server *want.Server, by int, touched *want.Touched) {
	touched.Servers[server.Key] = struct{}{}
	if !server.Unbound {
		touched.Addresses[server.Key.Addr.Addr()] = struct{}{}
	}
	t.count(want.LedgerEntry(t.want.Base.Ledger, server.Key), by, touched)
	for _, m := range server.Members {
		t.count(m, by, touched)
	}
}

func (t *Target) count(m kernel.Member, by int, touched *want.Touched) {
	touched.Members[m] = struct{}{}
	if t.members[m] += by; t.members[m] == 0 {
		delete(t.members, m)
	}
}
