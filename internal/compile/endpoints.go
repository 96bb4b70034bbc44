package compile

import (
	"cmp"
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

// endpoints are the endpoints of one Service port in one family, by traffic policy.
type endpoints struct {
	// all are sorted by address, without duplicates.
	all []endpoint
	// cluster gets new connections under the policy Cluster, local under the policy Local.
	cluster, local []endpoint
}

func endpointsOf(svc *model.Service, from slicePorts, refused refusals, n *nodeContext) endpoints {
	eps := endpoints{all: allEndpoints(from, n.NodeName, refused)}
	eps.cluster = available(eps.all, func(ready []endpoint) []endpoint { return byHints(svc, ready, n) })
	here := filter(eps.all, func(e endpoint) bool { return isOn(e.Endpoint, n.NodeName) })
	eps.local = available(here, func(ready []endpoint) []endpoint { return ready })
	return eps
}

func allEndpoints(from slicePorts, node string, refused refusals) []endpoint {
	all := make([]endpoint, 0, from.size())
	for _, p := range from {
		for i := range p.endpoints {
			e := &p.endpoints[i]
			if refused[e.Addr] == nil {
				all = append(all, endpoint{netip.AddrPortFrom(e.Addr, p.Port), e})
			}
		}
	}
	// An address is in two slices while an endpoint moves between them, or when a new pod has the address of a terminating one. The endpoint
	// that can serve counts. If the slices only disagree about its node, the endpoint is on this node, as in kube-proxy: otherwise a second
	// slice would take it from the policy Local.
	sorted := mergeRuns(all, func(a, b endpoint) int {
		if order := a.addr.Compare(b.addr); order != 0 {
			return order
		}
		return cmp.Compare(rank(a.Endpoint, node), rank(b.Endpoint, node))
	})
	return slices.CompactFunc(sorted, func(a, b endpoint) bool { return a.addr == b.addr })
}

// mergeRuns sorts a list stably. The list consists of sorted runs, usually one per EndpointSlice.
func mergeRuns(all []endpoint, compare func(a, b endpoint) int) []endpoint {
	ends := runEnds(all, compare)
	if len(ends) < 2 {
		return all
	}
	scratch := make([]endpoint, len(all))
	for len(ends) > 1 {
		begin, merged := 0, ends[:0]
		for pair := range slices.Chunk(ends, 2) {
			middle, end := pair[0], pair[len(pair)-1]
			merge(scratch[begin:end], all[begin:middle], all[middle:end], compare)
			begin, merged = end, append(merged, end)
		}
		all, scratch, ends = scratch, all, merged
	}
	return all
}

// runEnds returns the end of each sorted run.
func runEnds(all []endpoint, compare func(a, b endpoint) int) []int {
	var ends []int
	for i := range all {
		if i > 0 && compare(all[i-1], all[i]) > 0 {
			ends = append(ends, i)
		}
	}
	return append(ends, len(all))
}

func merge(into, a, b []endpoint, compare func(a, b endpoint) int) {
	for len(a) > 0 && len(b) > 0 {
		if compare(a[0], b[0]) <= 0 {
			into[0], a = a[0], a[1:]
		} else {
			into[0], b = b[0], b[1:]
		}
		into = into[1:]
	}
	copy(into[copy(into, a):], b)
}

// rank orders endpoints with the same address; the lowest counts. A running pod comes before a terminating one, ready or not: the other one
// is about to lose the address or has lost it already. Among equals, an endpoint on this node comes first.
func rank(e *model.Endpoint, node string) int {
	remote := 1
	if isOn(e, node) {
		remote = 0
	}
	switch {
	case e.Ready && !e.Terminating:
		return remote
	case !e.Terminating:
		return 2 + remote
	case e.Ready:
		return 4 + remote
	case e.Serving:
		return 6 + remote
	}
	return 8 + remote
}

// isOn is false for a node without a name.
func isOn(e *model.Endpoint, node string) bool { return node != "" && e.Node == node }

// available picks the endpoints for new connections: the preferred ready ones or, if none is ready, terminating ones that still serve, so
// that a rolling update of the last pod loses no client.
func available(all []endpoint, prefer func(ready []endpoint) []endpoint) []endpoint {
	if ready := filter(all, func(e endpoint) bool { return e.Ready }); len(ready) > 0 {
		return prefer(ready)
	}
	return filter(all, func(e endpoint) bool { return e.Serving && e.Terminating })
}

// byHints keeps the endpoints with a topology hint for this node, otherwise those with a hint for its zone, otherwise all. Hints count only
// if every endpoint has one, because otherwise they are just being added or removed, and only if not all hinted endpoints are drained.
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

// hinted returns the endpoints with the name among their hints, or none if any endpoint has no hints.
func hinted(ready []endpoint, name string, hints func(endpoint) []string) []endpoint {
	if name == "" || slices.ContainsFunc(ready, func(e endpoint) bool { return len(hints(e)) == 0 }) {
		return nil
	}
	return filter(ready, func(e endpoint) bool { return slices.Contains(hints(e), name) })
}

// healthPort counts, for load balancers, the distinct addresses on this node that are ready and not drained. A pod of a dual-stack Service
// has two addresses, so the family with more of them counts.
func healthPort(svc *model.Service, n *nodeContext, refused refusals) HealthPort {
	if svc.HealthCheckPort == 0 {
		return HealthPort{}
	}
	here := map[inet.Family]map[netip.Addr]struct{}{}
	for _, slice := range svc.Slices {
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			if !isOn(e, n.NodeName) || !e.Ready || !n.serves(slice.Family) || refused[e.Addr] != nil ||
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

// filter returns the endpoints to keep. Usually these are all or none, so it copies only after the first one to drop.
func filter(all []endpoint, keep func(endpoint) bool) []endpoint {
	first := slices.IndexFunc(all, func(e endpoint) bool { return !keep(e) })
	if first < 0 {
		return all
	}
	kept := all[:first:first]
	for _, e := range all[first+1:] {
		if keep(e) {
			kept = append(kept, e)
		}
	}
	return kept
}

// endpointProblems lists the rejected endpoints, each once.
func endpointProblems(svc *model.Service, refused refusals) []model.Problem {
	if len(refused) == 0 {
		return nil
	}
	var problems []model.Problem
	for _, slice := range svc.Slices {
		for i := range slice.Endpoints {
			addr := slice.Endpoints[i].Addr
			if err := refused[addr]; err != nil {
				problems = append(problems, problem(svc, "EndpointSlice "+slice.Name+" endpoints.addresses", addr.String(),
					"this endpoint gets no traffic: the address "+err.Error(), "use the unicast address of a pod or host that no Service has"))
			}
		}
	}
	return problems
}
