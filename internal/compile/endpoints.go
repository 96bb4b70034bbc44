package compile

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// endpoint is one endpoint of one Service port.
type endpoint struct {
	addr netip.AddrPort
	*model.Endpoint
}

// endpoints are those of one Service port in one family, as the traffic policies see them.
type endpoints struct {
	// all are sorted by address, without duplicates.
	all []endpoint
	// cluster gets new connections under the policy Cluster, local under the policy Local.
	cluster, local []endpoint
}

func endpointsOf(svc *model.Service, port model.ServicePort, f inet.Family, n *nodeContext) endpoints {
	eps := endpoints{all: allEndpoints(svc, port, f, n.NodeName, n.checkEndpoint)}
	eps.cluster = available(eps.all, func(ready []endpoint) []endpoint { return byHints(svc, ready, n) })
	here := filter(eps.all, func(e endpoint) bool { return isOn(e.Endpoint, n.NodeName) })
	eps.local = available(here, func(ready []endpoint) []endpoint { return ready })
	return eps
}

func allEndpoints(svc *model.Service, port model.ServicePort, f inet.Family, node string, check func(netip.Addr) error) []endpoint {
	var all []endpoint
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
					all = append(all, endpoint{netip.AddrPortFrom(e.Addr, to.Port), e})
				}
			}
		}
	}
	// An address is in two slices while an endpoint moves between them, or when a new pod has the address of one that terminates. The
	// endpoint that can serve counts. If the slices only disagree about its node, the endpoint is on this node, as in kube-proxy:
	// otherwise a second slice would take it from the policy Local.
	slices.SortStableFunc(all, func(a, b endpoint) int {
		return cmp.Or(a.addr.Compare(b.addr), cmp.Compare(rank(a.Endpoint, node), rank(b.Endpoint, node)))
	})
	return slices.CompactFunc(all, func(a, b endpoint) bool { return a.addr == b.addr })
}

// rank orders endpoints with the same address; the lowest counts. A pod that runs comes before one that terminates, ready or not:
// the other one is about to lose the address, if it has not lost it already. Among equals, one on this node comes first.
func rank(e *model.Endpoint, node string) int {
	elsewhere := 1
	if isOn(e, node) {
		elsewhere = 0
	}
	switch {
	case e.Ready && !e.Terminating:
		return elsewhere
	case !e.Terminating:
		return 2 + elsewhere
	case e.Ready:
		return 4 + elsewhere
	case e.Serving:
		return 6 + elsewhere
	}
	return 8 + elsewhere
}

// isOn is false for a node without a name.
func isOn(e *model.Endpoint, node string) bool { return node != "" && e.Node == node }

// available picks the endpoints for new connections: the preferred ones of those that are ready, or, if none is ready, those that
// terminate and still serve, so that a rolling update of the last pod loses no client.
func available(all []endpoint, prefer func(ready []endpoint) []endpoint) []endpoint {
	if ready := filter(all, func(e endpoint) bool { return e.Ready }); len(ready) > 0 {
		return prefer(ready)
	}
	return filter(all, func(e endpoint) bool { return e.Serving && e.Terminating })
}

// byHints keeps the endpoints with a topology hint for this node, else those with one for its zone, else all. Hints count only if every
// endpoint has one, because otherwise they are just being added or removed, and only if not all hinted endpoints are drained.
func byHints(svc *model.Service, ready []endpoint, n *nodeContext) []endpoint {
	getsConnections := func(e endpoint) bool { return n.weight(svc, e.Endpoint) > 0 }
	hints := hinted(ready, n.NodeName, func(e endpoint) []string { return e.ForNodes })
	if slices.ContainsFunc(hints, getsConnections) {
		return hints
	}
	hints = hinted(ready, n.zone(), func(e endpoint) []string { return e.ForZones })
	if slices.ContainsFunc(hints, getsConnections) {
		return hints
	}
	return ready
}

// hinted returns the endpoints that have the name among their hints, or none if any endpoint has no hints.
func hinted(ready []endpoint, name string, hints func(endpoint) []string) []endpoint {
	if name == "" || slices.ContainsFunc(ready, func(e endpoint) bool { return len(hints(e)) == 0 }) {
		return nil
	}
	return filter(ready, func(e endpoint) bool { return slices.Contains(hints(e), name) })
}

// healthPort counts the distinct addresses on this node that are ready and not drained, for load balancers. A pod of a dual-stack Service
// has two addresses, so the family with more of them counts.
func healthPort(svc *model.Service, n *nodeContext) HealthPort {
	if svc.HealthCheckPort == 0 {
		return HealthPort{}
	}
	here := map[inet.Family]map[netip.Addr]struct{}{}
	for _, slice := range svc.Slices {
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			if !isOn(e, n.NodeName) || !e.Ready || !n.serves(slice.Family) || n.checkEndpoint(e.Addr) != nil ||
				n.weight(svc, e) == 0 {
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

func filter(all []endpoint, keep func(endpoint) bool) []endpoint {
	var kept []endpoint
	for _, e := range all {
		if keep(e) {
			kept = append(kept, e)
		}
	}
	return kept
}

// endpointProblems lists the endpoints that are rejected, once each.
func endpointProblems(svc *model.Service, n *nodeContext) []model.Problem {
	var problems []model.Problem
	for _, slice := range svc.Slices {
		for i := range slice.Endpoints {
			addr := slice.Endpoints[i].Addr
			if err := n.checkEndpoint(addr); err != nil {
				field := fmt.Sprintf("EndpointSlice %s endpoints[%d].addresses", slice.Name, i)
				problems = append(problems, problem(svc, field, addr.String(),
					"this endpoint gets no traffic: the address "+err.Error(), "use the unicast address of a pod or host that no Service has"))
			}
		}
	}
	return problems
}
