package agent

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// flowsInterval is the least time between two looks at the tracked connections: each look reads them all.
const flowsInterval = time.Second

// flowProtocols have no end of a connection that a client would notice: who sends without pause stays with an endpoint that is
// gone, or with the way its packets took before the Service was there.
var flowProtocols = []inet.Protocol{inet.UDP, inet.SCTP}

// flows are the virtual servers whose tracked connections have to be looked at.
type flows struct {
	// all is true until every one was looked at once: what happened before we started is not known.
	all     bool
	servers map[kernel.ServerKey]struct{}
	// unsure are those of which an operation failed: whether it took effect is known when the kernel has been read again.
	unsure map[kernel.ServerKey]struct{}
	lookAt time.Time
}

func newFlows() flows {
	return flows{all: true, servers: map[kernel.ServerKey]struct{}{}, unsure: map[kernel.ServerKey]struct{}{}}
}

// endFlows forgets the tracked connections that lead to an endpoint which the virtual server does not have (any more).
func (a *Agent) endFlows(ctx context.Context, now time.Time, report *Report) {
	if report.Full {
		maps.Copy(a.flows.servers, a.flows.unsure)
		clear(a.flows.unsure)
	}
	a.flows.note(report.Results, a.have)
	if !a.flows.waiting() || now.Before(a.flows.lookAt) {
		return
	}
	ended, err := a.kernel.EndFlows(ctx, flowProtocols, a.leadsNowhere)
	report.EndedFlows = ended
	a.flows.lookAt = time.Now().Add(flowsInterval)
	if err != nil {
		report.flowsErr = fmt.Errorf("end the connections of endpoints that are gone: %w", err)
		return
	}
	a.flows.all = false
	clear(a.flows.servers)
}

// note notes the servers that have come, gone or lost a destination, and ports that one for all ports serves no more.
func (f *flows) note(results []Result, have *kernel.State) {
	for _, r := range results {
		key, concerns := losesFlows(r.Op, have)
		switch {
		case !concerns || r.Skipped:
		case r.Err == nil:
			f.servers[key] = struct{}{}
		default:
			f.unsure[key] = struct{}{}
		}
	}
}

// losesFlows says whether connections may lead nowhere because of an operation, and of which server.
func losesFlows(op kernel.Op, have *kernel.State) (key kernel.ServerKey, may bool) {
	switch o := op.Object.(type) {
	case kernel.Server:
		key, may = o.Key, op.Verb != kernel.Update
	case kernel.ServerDestination:
		key, may = o.Server, op.Verb == kernel.Delete
	case kernel.Member:
		key = kernel.ServerKey{Addr: netip.AddrPortFrom(o.Element.Addr, o.Element.Port), Protocol: o.Element.Protocol}
		_, wide := have.Servers[key.AllPorts()]
		may = wide && op.Verb == kernel.Delete
	}
	return key, may && slices.Contains(flowProtocols, key.Protocol)
}

func (f *flows) waiting() bool { return f.all || len(f.servers) > 0 }

// leadsNowhere says whether a tracked connection is to be forgotten. Those of servers that are not ours are not our business.
func (a *Agent) leadsNowhere(flow kernel.Flow) bool {
	_, noted := a.flows.servers[flow.Key]
	key := a.meets(flow.Key)
	_, ours := a.ours[key]
	_, widelyNoted := a.flows.servers[key]
	server, stands := a.have.Servers[key]
	switch {
	case !stands: // the one for all ports may have been it
		_, widelyNoted = a.flows.servers[flow.Key.AllPorts()]
		return noted || widelyNoted
	case !ours || !noted && !widelyNoted && !a.flows.all:
		return false
	case key != flow.Key && a.cluster.Want().ServerOf(flow.Key) != key:
		return true // the port is closed by now
	}
	return !slices.ContainsFunc(server.Destinations, func(d kernel.ObservedDestination) bool {
		return d.Addr == flow.Endpoint || d.Addr == netip.AddrPortFrom(flow.Endpoint.Addr(), 0) && flow.Endpoint.Port() == flow.Key.Addr.Port()
	})
}

// meets is the virtual server that packets to a port meet.
func (a *Agent) meets(port kernel.ServerKey) kernel.ServerKey {
	_, exact := a.have.Servers[port]
	if _, wide := a.have.Servers[port.AllPorts()]; wide && !exact {
		return port.AllPorts()
	}
	return port
}
