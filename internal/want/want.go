// Package want represents the wanted state of the kernel: the base (sysctls, sets, chains) and the Services' parts.
// It is complete before the first write (I3), so no failed write can shrink it.
//
// A Service's part is a Fragment. Replacing a fragment returns the objects that may now differ from the kernel. The
// cost depends only on the fragment's size, even with ten thousand Services.
//
// May import: kernel, inet, model.
package want

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// Base is the part that does not depend on Services.
type Base struct {
	Sysctls []kernel.SysctlSetting
	// Seed is the node's name, which determines the order in which new destinations are added to a virtual server.
	Seed string
	// Timeouts are the timeouts of IPVS connections; zero keeps the kernel's value.
	Timeouts kernel.Timeouts
	Sets     []Set
	Rulesets []kernel.Ruleset
	// Ledger names the set of each family that records which virtual servers are ours (I5). No rule matches it.
	Ledger map[inet.Family]string
	// Limited names the set of each family that records the virtual servers with connection limits. A dump of all
	// servers does not show these limits. No rule matches this set.
	Limited map[inet.Family]string
	// ClusterIPs names the set of each family that contains the served ports of ClusterIPs.
	ClusterIPs map[inet.Family]string
	// Binding is how IPv4 addresses are bound.
	Binding kernel.Binding
	// OnlyUser is true if only the agent binds addresses to kube-ipvs0.
	OnlyUser bool
	// AllPorts names the sets of each family that contain the addresses of all-ports servers.
	AllPorts map[inet.Family][]string
}

// BindingOf returns how an address is bound. IPv6 addresses are always on kube-ipvs0.
func (b *Base) BindingOf(addr netip.Addr) kernel.Binding {
	if addr.Is4() {
		return b.Binding
	}
	return kernel.OnDevice
}

// Set is one of our sets, with the timing of its members.
type Set struct {
	kernel.Set
	Timing Timing
	// VIPs is true for the set that records which addresses on kube-ipvs0 are ours.
	VIPs bool
}

// Timing specifies when the members of a set are added and removed, relative to their virtual server (I7).
type Timing uint8

const (
	// Late members accept packets. They are added after the virtual server and its destinations, and removed before
	// them. If the virtual server and its destinations already exist, the members are added before the rules, which
	// would otherwise reject packets.
	Late Timing = iota
	// Early members affect every packet that the virtual server receives. They are added before the virtual server,
	// and removed after it.
	Early
	// Guard members drop packets, or masquerade packets to endpoints on other nodes. They are added after early
	// members, which let clients pass a guard, but before the virtual server is created or its destinations change.
	// They are removed after the virtual server is deleted or its destinations change.
	Guard
)

// ServiceID identifies the Service that owns a virtual server.
type ServiceID = model.ServiceID

// Server is a virtual server with its destinations and set entries. Its address is bound while any virtual server uses it.
type Server struct {
	kernel.Server
	// Alike is another scheduler that balances these destinations equivalently; empty if there is none. An existing
	// virtual server with that scheduler keeps it.
	Alike string
	// Unbound is true if the address belongs to the node and is therefore not bound to kube-ipvs0.
	Unbound bool
	// Ports are the sorted ports of an all-ports server; empty for other servers.
	Ports []uint16
	// Destinations are sorted by address.
	Destinations []kernel.Destination
	// Members are this server's set entries. Several servers may need the same entry.
	Members   []kernel.Member
	SlowStart time.Duration
	// Owner is the Service port that the server serves, or the whole Service for an all-ports server.
	Owner model.ServicePortRef
}

// Over returns the virtual server that should replace an existing one.
func (s *Server) Over(existing kernel.Server) kernel.Server {
	wanted := s.Server
	if s.Alike != "" && existing.Scheduler == s.Alike {
		wanted.Scheduler = s.Alike
	}
	return wanted
}

// Destination returns the destination at an address.
func (s *Server) Destination(addr netip.AddrPort) (kernel.Destination, bool) {
	i, found := slices.BinarySearchFunc(s.Destinations, addr, func(d kernel.Destination, a netip.AddrPort) int { return d.Addr.Compare(a) })
	if !found {
		return kernel.Destination{}, false
	}
	return s.Destinations[i], true
}

// Limited reports whether a destination has a connection limit.
func (s *Server) Limited() bool {
	return slices.ContainsFunc(s.Destinations, func(d kernel.Destination) bool { return d.Upper > 0 })
}

// Stopped reports whether a destination has weight 0.
func (s *Server) Stopped() bool {
	return slices.ContainsFunc(s.Destinations, func(d kernel.Destination) bool { return d.Weight == 0 })
}

// Serves reports whether new connections to a port may match this virtual server.
func (s *Server) Serves(port kernel.ServerKey) bool {
	if s.Key == port {
		return true
	}
	_, has := slices.BinarySearch(s.Ports, port.Addr.Port())
	return has && s.Key == port.AllPorts()
}

// Fragment is one Service's part of the wanted state. It is immutable, and sorted by server key.
type Fragment []Server

// State is the wanted state. Use New to create one.
type State struct {
	Base    Base
	Servers map[kernel.ServerKey]*Server
	sets    map[string]Set
	members map[kernel.Member]int
	sizes   map[string]int
	// addresses are the addresses wanted on kube-ipvs0, each with the virtual servers that use it.
	addresses map[netip.Addr][]kernel.ServerKey
	// limited and stopped contain the virtual servers that have a destination with a connection limit, or with weight 0.
	limited, stopped map[kernel.ServerKey]*Server
}

// New returns a wanted state without Services.
func New(base Base) *State {
	s := empty(base)
	for family := range base.Ledger {
		s.countMember(Seal(base.Ledger, family), +1, NewTouched())
	}
	return s
}

func empty(base Base) *State {
	s := &State{
		Base:      base,
		Servers:   map[kernel.ServerKey]*Server{},
		sets:      map[string]Set{},
		members:   map[kernel.Member]int{},
		sizes:     map[string]int{},
		addresses: map[netip.Addr][]kernel.ServerKey{},
		limited:   map[kernel.ServerKey]*Server{},
		stopped:   map[kernel.ServerKey]*Server{},
	}
	for _, set := range base.Sets {
		s.sets[set.Name] = set
	}
	return s
}

// Touched names the objects whose wanted state may have changed.
type Touched struct {
	Rules     bool
	Servers   map[kernel.ServerKey]struct{}
	Members   map[kernel.Member]struct{}
	Addresses map[netip.Addr]struct{}
}

// NewTouched returns an empty Touched.
func NewTouched() *Touched {
	return &Touched{
		Servers:   map[kernel.ServerKey]struct{}{},
		Members:   map[kernel.Member]struct{}{},
		Addresses: map[netip.Addr]struct{}{},
	}
}

// Replace replaces a Service's old fragment with its new one; either may be nil. A virtual server that is also in
// another Service's fragment passes to the new fragment, because the other Service has lost its claim (I12).
func (s *State) Replace(old, new Fragment, touched *Touched) {
	for i := range old {
		s.remove(&old[i], touched)
	}
	for i := range new {
		s.add(&new[i], touched)
	}
}

func (s *State) add(server *Server, touched *Touched) {
	if loser := s.Servers[server.Key]; loser != nil {
		s.remove(loser, touched)
	}
	touched.Servers[server.Key] = struct{}{}
	s.Servers[server.Key] = server
	if server.Limited() {
		s.limited[server.Key] = server
	}
	if server.Stopped() {
		s.stopped[server.Key] = server
	}
	if !server.Unbound {
		addr := server.Key.Addr.Addr()
		touched.Addresses[addr] = struct{}{}
		s.addresses[addr] = append(s.addresses[addr], server.Key)
	}
	s.countMember(s.ledgerEntry(server.Key), +1, touched)
	for _, m := range server.Members {
		s.countMember(m, +1, touched)
	}
}

func (s *State) remove(server *Server, touched *Touched) {
	if s.Servers[server.Key] != server { // the server has passed to another fragment
		return
	}
	touched.Servers[server.Key] = struct{}{}
	delete(s.Servers, server.Key)
	delete(s.limited, server.Key)
	delete(s.stopped, server.Key)
	if !server.Unbound {
		s.removeFromAddress(server.Key, touched)
	}
	s.countMember(s.ledgerEntry(server.Key), -1, touched)
	for _, m := range server.Members {
		s.countMember(m, -1, touched)
	}
}

func (s *State) removeFromAddress(key kernel.ServerKey, touched *Touched) {
	addr := key.Addr.Addr()
	touched.Addresses[addr] = struct{}{}
	users := s.addresses[addr]
	if i := slices.Index(users, key); i >= 0 {
		users = slices.Delete(users, i, i+1)
	}
	if len(users) == 0 {
		delete(s.addresses, addr)
		return
	}
	s.addresses[addr] = users
}

func (s *State) countMember(m kernel.Member, by int, touched *Touched) {
	touched.Members[m] = struct{}{}
	before := s.members[m]
	switch s.members[m] += by; {
	case before == 0:
		s.sizes[m.Set]++
	case s.members[m] == 0:
		delete(s.members, m)
		s.sizes[m.Set]--
	}
}

// Sizes returns the number of members of each set.
func (s *State) Sizes() map[string]int { return maps.Clone(s.sizes) }

// Fullest returns the number of members of the largest set.
func (s *State) Fullest() (members int) {
	for _, size := range s.sizes {
		members = max(members, size)
	}
	return members
}

func (s *State) ledgerEntry(key kernel.ServerKey) kernel.Member {
	return LedgerEntry(s.Base.Ledger, key)
}

// LedgerEntry returns the owner record of a virtual server.
func LedgerEntry(ledger map[inet.Family]string, key kernel.ServerKey) kernel.Member {
	return kernel.Member{
		Set:     ledger[key.Family()],
		Element: kernel.Element{Addr: key.Addr.Addr(), Protocol: key.Protocol, Port: key.Addr.Port()},
	}
}

// Seal returns the last entry written to a ledger. A ledger with a seal is complete: virtual servers without an owner
// record are not ours. If the seal is missing, the ledger was lost, or the agent was killed while writing it. No
// virtual server can have this key, because Services cannot have loopback addresses.
func Seal(ledger map[inet.Family]string, f inet.Family) kernel.Member {
	return kernel.Member{Set: ledger[f], Element: kernel.Element{Addr: f.Loopback(), Protocol: inet.TCP, Port: 1}}
}

// Limited returns the virtual servers that have a destination with a connection limit. The caller must not change the map.
func (s *State) Limited() map[kernel.ServerKey]*Server { return s.limited }

// Stopped returns the virtual servers that have a destination with weight 0. The caller must not change the map.
func (s *State) Stopped() map[kernel.ServerKey]*Server { return s.stopped }

// ServersAt returns the wanted virtual servers that need the address on kube-ipvs0, in no particular order.
func (s *State) ServersAt(a netip.Addr) []kernel.ServerKey { return s.addresses[a] }

// Count returns the number of virtual servers that need the member.
func (s *State) Count(m kernel.Member) int { return s.members[m] }

// Set returns the declaration of one of our sets.
func (s *State) Set(name string) (Set, bool) {
	set, ok := s.sets[name]
	return set, ok
}

// Addresses iterates over the addresses wanted on kube-ipvs0.
func (s *State) Addresses(yield func(netip.Addr) bool) {
	for a := range s.addresses {
		if !yield(a) {
			return
		}
	}
}

// Members iterates over the wanted members.
func (s *State) Members(yield func(kernel.Member) bool) {
	for m := range s.members {
		if !yield(m) {
			return
		}
	}
}
