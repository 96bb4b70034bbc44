// Package flows finds tracked connections that may be stale: they send a client's packets to a deleted endpoint, or on the path from before
// the Service existed. UDP and SCTP clients that keep sending stay on that path until the entry is deleted. So does a TCP client whose first
// packet has no answer yet, because it retransmits that packet for minutes. TCP connections with an answer are never ended (I13).
//
// May import: inet, kernel. The agent does the I/O and has the clock.
package flows

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

const (
	// Interval is the minimum time between two checks, because each walks the connection tracking table.
	Interval = time.Second
	// share bounds the time that checks take: after a check, the next one waits this multiple of its duration.
	share = 10
)

// Flows records the virtual servers whose tracked connections must be checked.
type Flows struct {
	todo scope
	// unverified virtual servers had a failed operation. The next full read shows whether it took effect.
	unverified scope
	// ended maps each client to the endpoints of the flows that the last check ended.
	ended   map[client]kernel.ServerKey
	running bool
	next    time.Time
	// withoutIPVS is true if conntrack alone translates connections: then nothing else ends connections to a deleted destination.
	withoutIPVS bool
}

type client struct {
	addr     netip.AddrPort
	protocol inet.Protocol
}

// New returns Flows that first check every virtual server.
func New(withoutIPVS bool) *Flows {
	f := &Flows{todo: newScope(), unverified: newScope(), withoutIPVS: withoutIPVS}
	f.todo.all = true
	return f
}

// Verified records a full read of the kernel: from then on, virtual servers with a failed operation are checked, too.
func (f *Flows) Verified() {
	f.todo.add(f.unverified)
	f.unverified = newScope()
}

// Note records an attempted operation. Flows may be stale after a virtual server was created or deleted, after it lost a destination or a
// port, or after its address was bound.
func (f *Flows) Note(op kernel.Op, err error, have *kernel.State) {
	if err == nil {
		f.todo.note(op, have, f.withoutIPVS)
	} else {
		f.unverified.note(op, have, f.withoutIPVS)
	}
}

func (f *Flows) pending() bool { return !f.running && (!f.todo.empty() || len(f.ended) > 0) }

// Next returns the time of the next check; zero if none is planned.
func (f *Flows) Next() time.Time {
	if !f.pending() {
		return time.Time{}
	}
	return f.next
}

// Due reports whether a check is due.
func (f *Flows) Due(now time.Time) bool { return f.pending() && !now.Before(f.next) }

// Defer sets the next check to Interval after the given time.
func (f *Flows) Defer(from time.Time) { f.next = from.Add(Interval) }

// Surroundings are the state that flows are compared with.
type Surroundings struct {
	Have *kernel.State
	// Ours reports whether a virtual server is ours. Flows of foreign virtual servers are left alone.
	Ours func(kernel.ServerKey) bool
	// Ports returns the ports that an all-ports server should serve.
	Ports func(kernel.ServerKey) []uint16
}

// Begin begins a check. Checks run one at a time: none is due until this one is Finished.
func (f *Flows) Begin(s Surroundings) *Check {
	c := &Check{scope: f.todo, before: f.ended, ended: map[client]kernel.ServerKey{}}
	c.servers = c.copyServers(s)
	f.todo, f.running = newScope(), true
	return c
}

// Finished records the result of a check. Unless it failed, its virtual servers are done. If it ended flows, one more check finds the answers
// that were still in flight.
func (f *Flows) Finished(c *Check, now time.Time, took time.Duration, err error) {
	f.running = false
	f.next = now.Add(max(Interval, share*took))
	f.ended = c.ended
	if err != nil {
		f.todo.add(c.scope)
		maps.Copy(f.ended, c.before)
	}
}

// Check is one check of the tracked connections. It has copies of its inputs, so it may run while the kernel and the wanted state change.
type Check struct {
	scope scope
	// before are the flows ended by the previous check, ended the flows ended by this one.
	before, ended map[client]kernel.ServerKey
	// servers are all virtual servers at the addresses of this check.
	servers map[kernel.ServerKey]server
}

// server is a virtual server as a check compares flows with it.
type server struct {
	kernel.ObservedServer
	ours bool
	// ports are the ports that an all-ports server should serve.
	ports []uint16
}

func (c *Check) copyServers(s Surroundings) map[kernel.ServerKey]server {
	addresses := c.scope.concerned()
	for _, key := range c.before {
		addresses[key.Addr.Addr()] = struct{}{}
	}
	copied := map[kernel.ServerKey]server{}
	for key, observed := range s.Have.Servers {
		if _, concerned := addresses[key.Addr.Addr()]; !concerned && !c.scope.all {
			continue
		}
		one := server{ObservedServer: observed, ours: s.Ours(key)}
		if key == key.AllPorts() {
			one.ports = s.Ports(key)
		}
		copied[key] = one
	}
	return copied
}

// Protocols returns the protocols whose connections the check needs to see.
func (c *Check) Protocols() []inet.Protocol {
	seen := map[inet.Protocol]bool{}
	for key := range c.scope.servers {
		seen[key.Protocol] = true
	}
	for key := range c.servers {
		seen[key.Protocol] = seen[key.Protocol] || c.scope.has(key)
	}
	for to := range c.before {
		seen[to.protocol] = true
	}
	return slices.DeleteFunc([]inet.Protocol{inet.TCP, inet.UDP, inet.SCTP}, func(p inet.Protocol) bool { return !seen[p] && !c.scope.all })
}

// Stale reports whether a tracked connection must be deleted: it leads to an endpoint that is not in its virtual server, or it is a reply tracked as a separate flow, which
// blocks the client.
func (c *Check) Stale(flow kernel.Flow) bool {
	if flow.Key.Protocol == inet.TCP {
		// The kernel never tracks a TCP reply as a separate connection.
		return flow.Unanswered && c.strayed(flow)
	}
	if c.strayed(flow) {
		c.ended[client{flow.Client, flow.Key.Protocol}] = flow.Key
		return true
	}
	return c.blocks(flow)
}

// match returns the virtual server that new connections to a port match.
func (c *Check) match(port kernel.ServerKey) (server, bool) {
	key := kernel.MatchKey(port, func(key kernel.ServerKey) bool {
		_, exists := c.servers[key]
		return exists
	})
	s, exists := c.servers[key]
	return s, exists
}

// strayed reports whether a flow leads to an endpoint that is not in its virtual server.
func (c *Check) strayed(flow kernel.Flow) bool {
	s, exists := c.match(flow.Key)
	if !exists {
		return c.scope.noted(flow.Key) || c.scope.noted(flow.Key.AllPorts())
	}
	switch {
	case !s.ours, !c.scope.has(flow.Key) && !c.scope.has(s.Key):
		return false
	case s.Key != flow.Key && !slices.Contains(s.ports, flow.Key.Addr.Port()):
		return true // the all-ports server no longer serves the port
	}
	return !s.leadsTo(flow.Key, flow.Endpoint)
}

// blocks reports whether a flow is an endpoint's answer to a client whose flow this check or the last one ended. While the old flow is
// tracked, IPVS cannot attach the answers to it, so the kernel tracks them as a separate flow. That flow has the addresses that answers to
// the client's next flow need, so the kernel drops the client's packets until it expires.
func (c *Check) blocks(flow kernel.Flow) bool {
	to := client{flow.Key.Addr, flow.Key.Protocol}
	port, ended := c.ended[to]
	if !ended {
		port, ended = c.before[to]
	}
	if !ended {
		return false
	}
	s, exists := c.match(port)
	return exists && s.ours && s.leadsTo(port, flow.Client)
}

// leadsTo reports whether the virtual server forwards connections to a port to an endpoint.
func (s server) leadsTo(port kernel.ServerKey, endpoint netip.AddrPort) bool {
	if s.Key == s.Key.AllPorts() {
		if endpoint.Port() != port.Addr.Port() {
			return false
		}
		endpoint = netip.AddrPortFrom(endpoint.Addr(), 0)
	}
	_, has := s.Destination(endpoint)
	return has
}
