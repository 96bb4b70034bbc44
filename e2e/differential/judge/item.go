package judge

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// Kind is a kind of item.
type Kind string

// Kinds of items.
const (
	VirtualServer Kind = "virtual server"
	Draining      Kind = "draining destination"
	BoundAddress  Kind = "bound address"
	Connection    Kind = "connection"
)

// Item is one compared object, with each program's value.
type Item struct {
	Kind   Kind
	Key    Key            // for a bound address, the port is 0
	Dest   netip.AddrPort // of a draining destination
	Client string         // of a connection

	KubeProxy, Ours Value
}

// Value is one program's value of an item.
type Value struct {
	Server *Server
	There  bool // whether the draining destination or the address exists
	Reach  Reach
}

// Reach is the outcome of one client's connections to an address and port.
type Reach struct {
	Outcome string
	// Seen contains the source address that each server saw, for servers that answered.
	Seen map[string]string
}

// Source addresses that a server may see. Other sources are shown as addresses.
const (
	Itself    = "the client"
	AsNode    = "the node"
	AsVirtual = "an address of kube-ipvs0"
)

// Outcomes of connections.
const (
	Answered = "answered"
	TimedOut = "timed out"
)

func (v Value) answered() bool { return v.Reach.Outcome == Answered }

// leadsTo reports whether the virtual server exists and has exactly these destinations for new connections.
func (v Value) leadsTo(sorted []netip.AddrPort) bool {
	return v.Server != nil && slices.Equal(v.Server.Serving(), sorted)
}

func (i Item) addr() netip.Addr { return i.Key.Addr.Addr() }

func (i Item) v6() bool { return i.addr().Is6() }

func (i Item) same() bool {
	switch i.Kind {
	case VirtualServer:
		a, b := i.KubeProxy.Server, i.Ours.Server
		return (a == nil) == (b == nil) && (a == nil || a.equal(*b))
	case Connection:
		return i.KubeProxy.Reach.Equal(i.Ours.Reach)
	}
	return i.KubeProxy.There == i.Ours.There
}

// Equal reports whether both outcomes are the same.
func (r Reach) Equal(o Reach) bool { return r.Outcome == o.Outcome && maps.Equal(r.Seen, o.Seen) }

// allSaw reports whether servers answered and saw only these sources.
func (r Reach) allSaw(saw ...string) bool {
	for _, s := range r.Seen {
		if !slices.Contains(saw, s) {
			return false
		}
	}
	return r.Outcome == Answered
}

func (r Reach) String() string {
	if r.Outcome != Answered {
		return r.Outcome
	}
	var parts []string
	for _, server := range slices.Sorted(maps.Keys(r.Seen)) {
		parts = append(parts, fmt.Sprintf("%s saw %s", server, r.Seen[server]))
	}
	return "answered: " + strings.Join(parts, ", ")
}

func (i Item) String() string {
	return fmt.Sprintf("%s\n    kube-proxy: %s\n    kube-ipvs:  %s", i.Name(), i.show(i.KubeProxy), i.show(i.Ours))
}

// Name identifies the item.
func (i Item) Name() string {
	switch i.Kind {
	case Draining:
		return fmt.Sprintf("%s %s of %s", i.Kind, i.Dest, i.Key)
	case BoundAddress:
		return fmt.Sprintf("%s %s", i.Kind, i.addr())
	case Connection:
		return fmt.Sprintf("%s from %s to %s", i.Kind, i.Client, i.Key)
	}
	return fmt.Sprintf("%s %s", i.Kind, i.Key)
}

func (i Item) show(v Value) string {
	switch {
	case i.Kind == Connection:
		return v.Reach.String()
	case i.Kind == VirtualServer && v.Server != nil:
		return v.Server.String()
	case i.Kind != VirtualServer && v.There:
		return "present"
	}
	return "absent"
}

// Items returns every virtual server, draining destination and bound address that is in at least one of the states.
func Items(kubeProxy, ours State) []Item {
	var items []Item
	for _, key := range union(kubeProxy.Servers, ours.Servers, Key.Compare) {
		a, b := pointer(kubeProxy.Servers, key), pointer(ours.Servers, key)
		items = append(items, Item{Kind: VirtualServer, Key: key, KubeProxy: Value{Server: a}, Ours: Value{Server: b}})
		for _, dest := range union(draining(a), draining(b), netip.AddrPort.Compare) {
			items = append(items, Item{Kind: Draining, Key: key, Dest: dest,
				KubeProxy: Value{There: draining(a)[dest]}, Ours: Value{There: draining(b)[dest]}})
		}
	}
	for _, addr := range union(kubeProxy.Bound, ours.Bound, netip.Addr.Compare) {
		items = append(items, Item{Kind: BoundAddress, Key: Key{Addr: netip.AddrPortFrom(addr, 0)},
			KubeProxy: Value{There: kubeProxy.Bound[addr]}, Ours: Value{There: ours.Bound[addr]}})
	}
	return items
}

func union[K comparable, V any](a, b map[K]V, compare func(K, K) int) []K {
	all := maps.Clone(a)
	if all == nil {
		all = map[K]V{}
	}
	maps.Copy(all, b)
	return slices.SortedFunc(maps.Keys(all), compare)
}

func pointer(servers map[Key]Server, key Key) *Server {
	if s, there := servers[key]; there {
		return &s
	}
	return nil
}

func draining(s *Server) map[netip.AddrPort]bool {
	leaving := map[netip.AddrPort]bool{}
	if s != nil {
		for d, weight := range s.Destinations {
			if weight == 0 {
				leaving[d] = true
			}
		}
	}
	return leaving
}
