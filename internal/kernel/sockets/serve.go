package sockets

import (
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/forward/virtual"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// serve opens, changes or closes a port. Open TCP connections of a closed port continue, but UDP flows and the records of session affinity end.
// A UDP port therefore stays open while it has endpoints, even if none takes new clients.
func (t *table) serve(key kernel.ServerKey) error {
	at := virtual.Listen(key)
	s, exists := t.servers[key]
	clients, open := t.admission.Admitted(key, t.members, t.nodeAddresses())
	takes := slices.ContainsFunc(s.Destinations, kernel.ObservedDestination.TakesConnections) || key.Protocol == inet.UDP && len(s.Destinations) > 0
	if !exists || !open || !takes {
		return t.forwarder.Remove(at)
	}
	destinations := make([]kernel.Destination, len(s.Destinations))
	for i, d := range s.Destinations {
		destinations[i] = d.Destination
	}
	to := virtual.Target(s.Server, destinations)
	to.Clients = clients
	_, err := t.forwarder.Set(at, to)
	return err
}

// SetNode sets the node's own addresses. Ports at addresses that the node has gained or lost are opened again, because
// they belong in the other network namespace.
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
			_ = t.forwarder.Remove(virtual.Listen(key)) // the socket is closed even if close fails
		}
	}
	t.serveAll()
}

// SetPods replaces the ranges of pods, which count as inside the cluster.
func (t *table) SetPods(ranges []netip.Prefix) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if slices.Equal(t.admission.Pods, ranges) {
		return
	}
	t.admission.Pods = ranges
	t.serveAll()
}

// serveAll serves each port again. A port that cannot be opened is missing in the table, so the next audit repairs it.
func (t *table) serveAll() {
	for key := range t.servers {
		if t.serve(key) != nil {
			delete(t.servers, key)
		}
	}
}
