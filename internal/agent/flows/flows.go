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
	next       time.Time
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

func (f *Flows) pending() bool { return f.all || len(f.servers) > 0 }

// Next is when flows are checked next; zero if none has to be.
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

// Checked follows a successful check: nothing is pending.
func (f *Flows) Checked() {
	f.all = false
	clear(f.servers)
}

// Surroundings are what a flow is compared with.
type Surroundings struct {
	Have *kernel.State
	// Ours reports whether a virtual server is ours. The flows of others are left alone.
	Ours func(kernel.ServerKey) bool
	// Match returns the wanted virtual server that a port matches.
	Match func(port kernel.ServerKey) kernel.ServerKey
}

// Stale returns a function that reports whether a tracked connection leads to an endpoint that its virtual server does not have.
func (f *Flows) Stale(s Surroundings) func(kernel.Flow) bool {
	return func(flow kernel.Flow) bool {
		server, exists := kernel.Match(s.Have.Servers, flow.Key)
		if !exists {
			return f.noted(flow.Key) || f.noted(flow.Key.AllPorts())
		}
		switch {
		case !s.Ours(server.Key), !f.all && !f.noted(flow.Key) && !f.noted(server.Key):
			return false
		case server.Key != flow.Key && s.Match(flow.Key) != server.Key:
			return true // the all-ports server no longer serves the port
		}
		return !slices.ContainsFunc(server.Destinations, func(d kernel.ObservedDestination) bool { return d.Addr == flow.Endpoint })
	}
}

func (f *Flows) noted(key kernel.ServerKey) bool {
	_, noted := f.servers[key]
	return noted
}
