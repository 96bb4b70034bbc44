package sockets

import (
	"net/netip"
	"slices"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/forward"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Policy names the sets that decide which clients a port admits.
type Policy struct {
	// Closed are the sets whose ports admit nobody.
	Closed []string
	// InsideOnly are the sets whose ports admit only the node itself, and the clients in Pods.
	InsideOnly []string
	Pods       []netip.Prefix
	// Firewalled are the sets whose ports admit only the clients that a set in Allowed names for the port.
	Firewalled, Allowed []string
}

// serve opens, changes or closes a port. Open TCP connections of a closed port continue.
func (t *table) serve(key kernel.ServerKey) error {
	at := listenAt(key)
	s, exists := t.servers[key]
	clients, open := t.admitted(key)
	if !exists || !open || !slices.ContainsFunc(s.Destinations, kernel.ObservedDestination.TakesConnections) {
		return t.forwarder.Remove(at)
	}
	to := forward.Target{
		Clients: clients, Endpoints: make([]forward.Endpoint, len(s.Destinations)),
		Header: forward.HeaderOf(s.Flags&kernel.FlagProxyV1 != 0, s.Flags&kernel.FlagProxyV2 != 0),
	}
	for i, d := range s.Destinations {
		to.Endpoints[i] = forward.Endpoint{Addr: d.Addr, Weight: d.Weight}
	}
	if s.Flags&kernel.FlagPersistent != 0 {
		to.Affinity, to.AffinityBits = time.Duration(s.Timeout)*time.Second, int(s.MaskBits)
	}
	_, err := t.forwarder.Set(at, to)
	return err
}

func listenAt(key kernel.ServerKey) forward.Listen {
	return forward.Listen{Protocol: forward.Protocol(key.Protocol.String()), At: key.Addr}
}

// admitted returns the ranges of the clients that a port admits; nil means every client. It returns false if the port
// admits nobody.
func (t *table) admitted(key kernel.ServerKey) (clients []netip.Prefix, open bool) {
	if t.inAny(t.policy.Closed, key) {
		return nil, false
	}
	inside, firewalled := t.inAny(t.policy.InsideOnly, key), t.inAny(t.policy.Firewalled, key)
	switch {
	case inside && firewalled:
		clients = intersect(t.inside(), t.allowed(key))
	case inside:
		clients = t.inside()
	case firewalled:
		clients = t.allowed(key)
	default:
		return nil, true
	}
	return clients, len(clients) > 0
}

// inside returns the clients that are inside the cluster. There may be none; admitted then closes the port.
func (t *table) inside() []netip.Prefix {
	clients := slices.Clone(t.policy.Pods)
	for _, addr := range t.nodeAddresses() {
		clients = append(clients, netip.PrefixFrom(addr, addr.BitLen()))
	}
	return clients
}

// SetNode sets the node's own addresses. Ports at addresses that the node has gained or lost are opened again, because
// they belong in the other network namespace. A port that cannot be opened is missing in the table, so the next audit
// repairs it.
func (t *table) SetNode(addrs []netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.nodeAddresses()
	if slices.Equal(before, addrs) {
		return
	}
	addrs = slices.Clone(addrs)
	t.node.Store(&addrs)
	for key := range t.servers {
		addr := key.Addr.Addr()
		if slices.Contains(before, addr) != slices.Contains(addrs, addr) {
			_ = t.forwarder.Remove(listenAt(key)) // the socket is closed even if close fails
		}
		if t.serve(key) != nil {
			delete(t.servers, key)
		}
	}
}

func (t *table) inAny(sets []string, key kernel.ServerKey) bool {
	e := kernel.Element{Addr: key.Addr.Addr(), Protocol: key.Protocol, Port: key.Addr.Port()}
	return slices.ContainsFunc(sets, func(name string) bool { _, in := t.members[name][e]; return in })
}

// allowed returns the ranges of a firewalled port, sorted.
func (t *table) allowed(key kernel.ServerKey) (ranges []netip.Prefix) {
	for _, name := range t.policy.Allowed {
		for e := range t.members[name] {
			if e.Addr == key.Addr.Addr() && e.Protocol == key.Protocol && e.Port == key.Addr.Port() {
				ranges = append(ranges, netip.PrefixFrom(e.Addr2, int(e.Bits2)))
			}
		}
	}
	slices.SortFunc(ranges, netip.Prefix.Compare)
	return ranges
}

// intersect returns the ranges that are in both lists. Of two ranges that overlap, one contains the other.
func intersect(a, b []netip.Prefix) (both []netip.Prefix) {
	for _, p := range a {
		for _, q := range b {
			if p.Overlaps(q) {
				if p.Bits() < q.Bits() {
					both = append(both, q)
				} else {
					both = append(both, p)
				}
			}
		}
	}
	return both
}
