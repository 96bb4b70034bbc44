// Package flows finds tracked connections that may be stale. A stale connection sends a client's packets to a deleted
// endpoint, or along the path they took before the Service existed, or without masquerading, because rules were missing
// when it began. UDP and SCTP clients that keep sending stay on a stale connection until it is deleted. A TCP client
// whose first packet is unanswered also stays, because it retransmits that packet for minutes. The agent never ends
// answered TCP connections (I13).
//
// May import: inet, kernel. The package performs no I/O and has no clock.
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
	// Interval is the minimum time between two checks, because each check walks the connection tracking table.
	Interval = time.Second
	// share limits the cost of checks. After a check, the agent waits share times as long as the check took.
	share = 10
)

// Flows records the virtual servers whose tracked connections must be checked.
type Flows struct {
	todo scope
	// unverified contains the virtual servers with a failed operation. The next full read shows whether the operation
	// took effect.
	unverified scope
	// ended maps each client to the endpoints of the flows that the last check ended.
	ended   map[client]kernel.ServerKey
	running bool
	next    time.Time
	// withoutIPVS is true if only conntrack translates connections. In that case, nothing else ends connections to a
	// deleted destination.
	withoutIPVS bool
}

type client struct {
	addr     netip.AddrPort
	protocol inet.Protocol
}

// New returns Flows whose first check covers every virtual server.
func New(withoutIPVS bool) *Flows {
	f := &Flows{todo: newScope(), unverified: newScope(), withoutIPVS: withoutIPVS}
	f.todo.all, f.todo.plain = true, true
	return f
}

// Verified records a full read of the kernel. The next check includes the virtual servers with failed operations.
func (f *Flows) Verified() {
	f.todo.add(f.unverified)
	f.unverified = newScope()
}

// Note records an attempted operation. An operation can make flows stale if it creates or deletes a virtual server,
// binds its address, or removes a destination or port.
func (f *Flows) Note(op kernel.Op, err error, have *kernel.State) {
	if err == nil {
		f.todo.note(op, have, f.withoutIPVS)
	} else {
		f.unverified.note(op, have, f.withoutIPVS)
	}
}

// Unmasqueraded records that something that masquerades packets was missing until now. Flows that began meanwhile stay without masquerading,
// because the kernel decides once for each flow.
func (f *Flows) Unmasqueraded() { f.todo.plain = true }

func (f *Flows) pending() bool { return !f.running && (!f.todo.empty() || len(f.ended) > 0) }

// Next returns the time of the next check, or zero if none is planned.
func (f *Flows) Next() time.Time {
	if !f.pending() {
		return time.Time{}
	}
	return f.next
}

// Due reports whether a check is due.
func (f *Flows) Due(now time.Time) bool { return f.pending() && !now.Before(f.next) }

// Defer schedules the next check one Interval after the given time.
func (f *Flows) Defer(from time.Time) { f.next = from.Add(Interval) }

// Surroundings is the state that flows are compared with.
type Surroundings struct {
	Have *kernel.State
	Ours func(kernel.ServerKey) bool
	// Ports returns the ports that an all-ports server should serve.
	Ports func(kernel.ServerKey) []uint16
	// Masquerades reports whether the endpoints of a port see the node's address for every client.
	Masquerades func(kernel.ServerKey) bool
}

// Begin starts a check. No other check is due until Finished is called.
func (f *Flows) Begin(s Surroundings) *Check {
	c := &Check{scope: f.todo, before: f.ended, ended: map[client]kernel.ServerKey{}}
	c.servers = c.copyServers(s)
	f.todo, f.running = newScope(), true
	return c
}

// Finished records the result of a check. After a failure, the check is repeated. If the check ended flows, another
// check looks for answers that were still in flight.
func (f *Flows) Finished(c *Check, now time.Time, took time.Duration, err error) {
	f.running = false
	f.next = now.Add(max(Interval, share*took))
	f.ended = c.ended
	if err != nil {
		f.todo.add(c.scope)
		maps.Copy(f.ended, c.before)
	}
}

// Check is one check of the tracked connections. It works on copies, because the kernel and the wanted state may
// change in the meantime.
type Check struct {
	scope scope
	// before contains the flows that the previous check ended. ended contains the flows that this check ended.
	before, ended map[client]kernel.ServerKey
	// servers contains all virtual servers in the scope of this check, and all others at their addresses.
	servers map[kernel.ServerKey]server
}

type server struct {
	kernel.ObservedServer
	ours  bool
	ports []uint16
	// masqueraded contains the ports whose endpoints see the node's address for every client.
	masqueraded []uint16
}

func (c *Check) copyServers(s Surroundings) map[kernel.ServerKey]server {
	addresses := c.scope.concerned()
	for _, key := range c.before {
		addresses[key.Addr.Addr()] = struct{}{}
	}
	copied := map[kernel.ServerKey]server{}
	for key, observed := range s.Have.Servers {
		if _, concerned := addresses[key.Addr.Addr()]; !concerned && !c.scope.all && !c.scope.plain {
			continue
		}
		one := server{ObservedServer: observed, ours: s.Ours(key)}
		if key == key.AllPorts() {
			one.ports = s.Ports(key)
		}
		if c.scope.plain {
			one.masqueraded = slices.DeleteFunc(append([]uint16{key.Addr.Port()}, one.ports...), func(port uint16) bool { return !s.Masquerades(key.WithPort(port)) })
		}
		copied[key] = one
	}
	return copied
}

// Protocols returns the protocols whose connections the check must read.
func (c *Check) Protocols() []inet.Protocol {
	seen := map[inet.Protocol]bool{}
	for key := range c.scope.servers {
		seen[key.Protocol] = true
	}
	for key := range c.servers {
		seen[key.Protocol] = seen[key.Protocol] || c.scope.has(key) || c.scope.plain
	}
	for to := range c.before {
		seen[to.protocol] = true
	}
	return slices.DeleteFunc([]inet.Protocol{inet.TCP, inet.UDP, inet.SCTP}, func(p inet.Protocol) bool { return !seen[p] && !c.scope.all })
}

// Stale reports whether a tracked connection must be deleted. It leads to an endpoint that is not in its virtual server, or its replies bypass this
// node, or it is a reply that the kernel tracks as a separate flow, which blocks the client.
func (c *Check) Stale(flow kernel.Flow) bool {
	if flow.Key.Protocol == inet.TCP {
		// The kernel never tracks a TCP reply as a separate flow.
		return flow.Unanswered && c.strayed(flow)
	}
	if c.strayed(flow) {
		c.ended[client{flow.Client, flow.Key.Protocol}] = flow.Key
		return true
	}
	return c.blocks(flow)
}

func (c *Check) match(port kernel.ServerKey) (server, bool) {
	key := kernel.MatchKey(port, func(key kernel.ServerKey) bool {
		_, exists := c.servers[key]
		return exists
	})
	s, exists := c.servers[key]
	return s, exists
}

func (c *Check) strayed(flow kernel.Flow) bool {
	s, exists := c.match(flow.Key)
	if !exists {
		return c.scope.noted(flow.Key) || c.scope.noted(flow.Key.AllPorts())
	}
	switch {
	case !s.ours:
		return false
	case c.scope.plain && flow.OneWay && !flow.Masqueraded && s.masquerades(flow) && s.leadsTo(flow.Key, flow.Endpoint):
		return true // replies bypass this node
	case !c.scope.has(flow.Key) && !c.scope.has(s.Key):
		return false
	case s.Key != flow.Key && !slices.Contains(s.ports, flow.Key.Addr.Port()):
		return true // the all-ports server no longer serves the port
	}
	return !s.leadsTo(flow.Key, flow.Endpoint)
}

// blocks reports whether a flow consists of an endpoint's answers to a client whose flow this check or the previous
// check ended. While the old flow is tracked, IPVS cannot attach the answers to it, so the kernel tracks them as a
// separate flow. That flow uses the addresses that answers to the client's next flow need. Until it expires, the kernel
// drops the client's packets.
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

// masquerades reports whether the endpoint of a flow sees the node's address. Whether a ClusterIP's client is a pod is not visible here, so the
// result may be false although the client is not a pod.
func (s server) masquerades(flow kernel.Flow) bool {
	client := flow.Client.Addr()
	fromNode, toItself := client == flow.Key.Addr.Addr(), client == flow.Endpoint.Addr()
	return fromNode || toItself || slices.Contains(s.masqueraded, flow.Key.Addr.Port())
}

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
