package compile

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// target is one endpoint of one Service port.
type target struct {
	addr     netip.AddrPort
	endpoint *model.Endpoint
}

// targets lists what serves a Service port in a family, sorted by address and without duplicates. Addresses that fail the check are left out.
func targets(svc *model.Service, port model.ServicePort, f inet.Family, check func(netip.Addr) error) []target {
	var all []target
	for _, slice := range svc.Slices {
		if slice.Family != f {
			continue
		}
		for _, to := range slice.Ports {
			if to.Name != port.Name || to.Protocol != port.Protocol {
				continue
			}
			for i := range slice.Endpoints {
				e := &slice.Endpoints[i]
				if check(e.Addr) == nil {
					all = append(all, target{netip.AddrPortFrom(e.Addr, to.Port), e})
				}
			}
		}
	}
	// The same address in two slices: an endpoint is being moved, or a new pod got the address of one that is going. The one
	// that can serve counts.
	slices.SortStableFunc(all, func(a, b target) int {
		return cmp.Or(a.addr.Compare(b.addr), cmp.Compare(rank(a.endpoint), rank(b.endpoint)))
	})
	return slices.CompactFunc(all, func(a, b target) bool { return a.addr == b.addr })
}

// rank orders the states of an endpoint: what gets connections first. Of a pod that runs and one that is on its way out the first
// counts, ready or not: the other one's address is about to be nobody's, or the first one's.
func rank(e *model.Endpoint) int {
	switch {
	case e.Ready && !e.Terminating:
		return 0
	case !e.Terminating:
		return 1
	case e.Ready:
		return 2
	case e.Serving:
		return 3
	}
	return 4
}

// backends are the endpoints of one Service port in one family, as the traffic policies see them.
type backends struct {
	all []target
	// cluster takes new connections under the policy Cluster, local under the policy Local.
	cluster, local []target
}

func backendsOf(svc *model.Service, port model.ServicePort, f inet.Family, n *nodeContext) backends {
	b := backends{all: targets(svc, port, f, n.checkEndpoint)}
	b.cluster = available(b.all, func(ready []target) []target { return byHints(svc, ready, n) })
	here := filter(b.all, func(e *model.Endpoint) bool { return n.NodeName != "" && e.Node == n.NodeName })
	b.local = available(here, func(ready []target) []target { return ready })
	return b
}

// available picks the targets for new connections: among the ready ones those that are preferred, or, when none is ready,
// those that still serve while they terminate, so that a rolling update of the last pod loses nobody.
func available(all []target, prefer func(ready []target) []target) []target {
	if ready := filter(all, func(e *model.Endpoint) bool { return e.Ready }); len(ready) > 0 {
		return prefer(ready)
	}
	return filter(all, func(e *model.Endpoint) bool { return e.Serving && e.Terminating })
}

// byHints keeps the endpoints that are meant for this node, else those for its zone, else all. Hints count only when every
// endpoint has them: else they are just being written, or taken back. They do not when all that are meant are drained.
func byHints(svc *model.Service, ready []target, n *nodeContext) []target {
	takes := func(t target) bool { return n.weight(svc, t.endpoint) > 0 }
	if meant := hinted(ready, n.NodeName, func(e *model.Endpoint) []string { return e.ForNodes }); slices.ContainsFunc(meant, takes) {
		return meant
	}
	if meant := hinted(ready, n.zone(), func(e *model.Endpoint) []string { return e.ForZones }); slices.ContainsFunc(meant, takes) {
		return meant
	}
	return ready
}

// hinted returns the targets whose hints have the name, or none if any of them has no hints.
func hinted(ready []target, name string, hints func(*model.Endpoint) []string) []target {
	if name == "" || slices.ContainsFunc(ready, func(t target) bool { return len(hints(t.endpoint)) == 0 }) {
		return nil
	}
	return filter(ready, func(e *model.Endpoint) bool { return slices.Contains(hints(e), name) })
}

// healthPort counts, for load balancers, the distinct addresses on this node that are ready and not drained. The pods of a dual-stack Service
// have two; they count in the family that has more.
func healthPort(svc *model.Service, n *nodeContext) HealthPort {
	if svc.HealthCheckPort == 0 {
		return HealthPort{}
	}
	here := map[inet.Family]map[netip.Addr]struct{}{}
	for _, slice := range svc.Slices {
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			if n.NodeName == "" || e.Node != n.NodeName || !e.Ready || !n.serves(slice.Family) || n.checkEndpoint(e.Addr) != nil || n.weight(svc, e) == 0 {
				continue
			}
			if here[slice.Family] == nil {
				here[slice.Family] = map[netip.Addr]struct{}{}
			}
			here[slice.Family][e.Addr] = struct{}{}
		}
	}
	return HealthPort{Port: svc.HealthCheckPort, Local: max(len(here[inet.IPv4]), len(here[inet.IPv6]))}
}

func filter(all []target, keep func(*model.Endpoint) bool) []target {
	var kept []target
	for _, t := range all {
		if keep(t.endpoint) {
			kept = append(kept, t)
		}
	}
	return kept
}

// endpointProblems names the endpoints that are refused, once each.
func endpointProblems(svc *model.Service, n *nodeContext) []model.Problem {
	var problems []model.Problem
	for _, slice := range svc.Slices {
		for i := range slice.Endpoints {
			addr := slice.Endpoints[i].Addr
			if err := n.checkEndpoint(addr); err != nil {
				problems = append(problems, problem(svc, fmt.Sprintf("EndpointSlice %s endpoints[%d].addresses", slice.Name, i), addr.String(),
					fmt.Sprintf("this endpoint gets no traffic: the address %v", err),
					"use the unicast address of a pod or host, not one of a Service"))
			}
		}
	}
	return problems
}
