// Package flows knows which tracked connections may be stale: those of protocols without a connection teardown that a client would
// notice. A UDP or SCTP client that keeps sending stays with an endpoint that is gone, or with the path that its packets took before
// the Service existed, until its conntrack entry is deleted.
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

// Interval is the minimum time between two reads of the tracked connections: each of them reads the whole table.
const Interval = time.Second

// Protocols are those whose flows are ended.
var Protocols = []inet.Protocol{inet.UDP, inet.SCTP}

// Flows are the virtual servers whose tracked connections have to be checked.
type Flows struct {
	// all is true until the flows of every virtual server were checked once: what happened before the agent started is not known.
	all     bool
	servers map[kernel.ServerKey]struct{}
	// unverified had a failed operation. Whether it took effect is known after the next full read.
	unverified map[kernel.ServerKey]struct{}
	// ended are the flows that the last check ended, by client: where each led to.
	ended map[client]kernel.ServerKey
	next  time.Time
}

type client struct {
	addr     netip.AddrPort
	protocol inet.Protocol
}

// New returns Flows that check every virtual server first.
func New() *Flows {
	return &Flows{all: true, servers: map[kernel.ServerKey]struct{}{}, unverified: map[kernel.ServerKey]struct{}{}}
}

// Verified follows a full read of the kernel: the flows of virtual servers with a failed operation are checked, too.
func (f *Flows) Verified() {
	maps.Copy(f.servers, f.unverified)
	clear(f.unverified)
}

// Note notes an operation that was tried. Flows may be stale after a virtual server was created or deleted, lost a destination, or
// lost a port that an all-ports server had served.
func (f *Flows) Note(op kernel.Op, err error, have *kernel.State) {
	key, may := mayStrandFlows(op, have)
	switch {
	case !may:
	case err == nil:
		f.servers[key] = struct{}{}
	default:
		f.unverified[key] = struct{}{}
	}
}

// mayStrandFlows reports whether flows may be stale because of an operation, and of which virtual server.
func mayStrandFlows(op kernel.Op, have *kernel.State) (key kernel.ServerKey, may bool) {
	switch o := op.Object.(type) {
	case kernel.Server:
		key, may = o.Key, op.Verb != kernel.Update
	case kernel.ServerDestination:
		key, may = o.Server, op.Verb == kernel.Delete
	case kernel.Member:
		key = kernel.ServerKey{Addr: netip.AddrPortFrom(o.Element.Addr, o.Element.Port), Protocol: o.Element.Protocol}
		_, allPorts := have.Servers[key.AllPorts()]
		may = allPorts && op.Verb == kernel.Delete
	}
	return key, may && slices.Contains(Protocols, key.Protocol)
}

func (f *Flows) pending() bool { return f.all || len(f.servers) > 0 || len(f.ended) > 0 }

// Next returns the time of the next check; zero if none is planned.
func (f *Flows) Next() time.Time {
	if !f.pending() {
		return time.Time{}
	}
	return f.next
}

// Due reports whether flows have to be checked now.
func (f *Flows) Due(now time.Time) bool { return f.pending() && !now.Before(f.next) }

// Defer moves the next check to Interval after a time.
func (f *Flows) Defer(from time.Time) { f.next = from.Add(Interval) }

// Checked follows a successful check: nothing is pending, unless it ended flows. Then one more check finds the answers that were
// still on their way.
func (f *Flows) Checked(c *Check) {
	f.all = false
	clear(f.servers)
	f.ended = c.ended
}

// Surroundings are what a flow is compared with.
type Surroundings struct {
	Have *kernel.State
	// Ours reports whether a virtual server is ours. The flows of others are left alone.
	Ours func(kernel.ServerKey) bool
	// Match returns the wanted virtual server that a port matches.
	Match func(port kernel.ServerKey) kernel.ServerKey
}

// Check is one look at all tracked connections.
type Check struct {
	flows *Flows
	Surroundings
	ended map[client]kernel.ServerKey
}

// Check begins a check.
func (f *Flows) Check(s Surroundings) *Check {
	return &Check{flows: f, Surroundings: s, ended: map[client]kernel.ServerKey{}}
}

// Stale reports whether a tracked connection must be deleted: it leads to an endpoint that its virtual server does not have, or it is
// a reply tracked as a flow of its own, which blocks the client.
func (c *Check) Stale(flow kernel.Flow) bool {
	if c.strayed(flow) {
		c.ended[client{flow.Client, flow.Key.Protocol}] = flow.Key
		return true
	}
	return c.blocks(flow)
}

// strayed reports whether a flow leads to an endpoint that its virtual server does not have.
func (c *Check) strayed(flow kernel.Flow) bool {
	f := c.flows
	server, exists := kernel.Match(c.Have.Servers, flow.Key)
	if !exists {
		return f.noted(flow.Key) || f.noted(flow.Key.AllPorts())
	}
	switch {
	case !c.Ours(server.Key), !f.all && !f.noted(flow.Key) && !f.noted(server.Key):
		return false
	case server.Key != flow.Key && c.Match(flow.Key) != server.Key:
		return true // the all-ports server no longer serves the port
	}
	return !leadsTo(server, flow.Endpoint)
}

// blocks reports whether a flow is an endpoint's answer to a client whose own flow was ended, now or by the last check. While the
// old flow is tracked, IPVS cannot attach the answers to it, so the kernel tracks them as a flow of their own. That one then has the
// addresses that the client's next flow needs for its answers, and the kernel drops the client's packets until it expires.
func (c *Check) blocks(flow kernel.Flow) bool {
	to := client{flow.Key.Addr, flow.Key.Protocol}
	port, ended := c.ended[to]
	if !ended {
		port, ended = c.flows.ended[to]
	}
	if !ended {
		return false
	}
	server, exists := kernel.Match(c.Have.Servers, port)
	return exists && c.Ours(server.Key) && leadsTo(server, flow.Client)
}

func leadsTo(server kernel.ObservedServer, endpoint netip.AddrPort) bool {
	return slices.ContainsFunc(server.Destinations, func(d kernel.ObservedDestination) bool { return d.Addr == endpoint })
}

func (f *Flows) noted(key kernel.ServerKey) bool {
	_, noted := f.servers[key]
	return noted
}
