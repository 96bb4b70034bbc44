package compile

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// Endpoint is one endpoint of one Service port.
type Endpoint struct {
	Addr netip.AddrPort
	*model.Endpoint
}

// portEndpoints are the endpoints of one Service port in one family, by traffic policy.
type portEndpoints struct {
	// all is sorted by address, without duplicates.
	all []Endpoint
	// cluster contains the endpoints for new connections under the policy Cluster, and local those under the policy
	// Local.
	cluster, local []Endpoint
}

func endpointsOf(svc *model.Service, from slicePorts, refused refusals, n *nodeContext) portEndpoints {
	eps := portEndpoints{all: allEndpoints(from, n.NodeName, refused)}
	eps.cluster = available(eps.all, func(ready []Endpoint) []Endpoint { return byHints(svc, ready, n) })
	here := filter(eps.all, func(e Endpoint) bool { return isOn(e.Endpoint, n.NodeName) })
	eps.local = available(here, func(ready []Endpoint) []Endpoint { return ready })
	return eps
}

func allEndpoints(from slicePorts, node string, refused refusals) []Endpoint {
	all := make([]Endpoint, 0, from.size())
	for _, p := range from {
		for i := range p.endpoints {
			e := &p.endpoints[i]
			if refused[e.Addr] == nil {
				all = append(all, Endpoint{netip.AddrPortFrom(e.Addr, p.Port), e})
			}
		}
	}
	// An address is in two slices while an endpoint moves between them, or when a new pod has the address of a terminating one. The endpoint that can
	// serve takes precedence. If the slices disagree only about its node, the endpoint counts as local, as in kube-proxy. Otherwise a second slice
	// could remove it from the policy Local.
	sorted := mergeRuns(all, func(a, b Endpoint) int {
		if order := a.Addr.Compare(b.Addr); order != 0 {
			return order
		}
		return cmp.Compare(rank(a.Endpoint, node), rank(b.Endpoint, node))
	})
	return slices.CompactFunc(sorted, func(a, b Endpoint) bool { return a.Addr == b.Addr })
}

// mergeRuns sorts a list stably. The list consists of sorted runs, usually one per EndpointSlice.
func mergeRuns(all []Endpoint, compare func(a, b Endpoint) int) []Endpoint {
	ends := runEnds(all, compare)
	if len(ends) < 2 {
		return all
	}
	scratch := make([]Endpoint, len(all))
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

func runEnds(all []Endpoint, compare func(a, b Endpoint) int) []int {
	var ends []int
	for i := range all {
		if i > 0 && compare(all[i-1], all[i]) > 0 {
			ends = append(ends, i)
		}
	}
	return append(ends, len(all))
}

func merge(into, a, b []Endpoint, compare func(a, b Endpoint) int) {
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

// rank orders endpoints with the same address. The lowest rank takes precedence. A running pod comes before a terminating one, ready or not, because
// the terminating pod is about to lose the address or has already lost it. If two endpoints are otherwise equal, the one on this node comes first.
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

// isOn returns false if the node's name is unknown.
func isOn(e *model.Endpoint, node string) bool { return node != "" && e.Node == node }

// available picks the endpoints for new connections: the preferred ready endpoints or, if none is ready, terminating endpoints that still
// serve, so that replacing the last pod loses no clients.
func available(all []Endpoint, prefer func(ready []Endpoint) []Endpoint) []Endpoint {
	if ready := filter(all, func(e Endpoint) bool { return e.Ready }); len(ready) > 0 {
		return prefer(ready)
	}
	return filter(all, func(e Endpoint) bool { return e.Serving && e.Terminating })
}

// byHints keeps the endpoints with a topology hint for this node. If there are none, it keeps those with a hint for its zone, or else all. If any
// endpoint lacks a hint, hints are being added or removed, and byHints ignores them. It also ignores them if all hinted endpoints are drained.
func byHints(svc *model.Service, ready []Endpoint, n *nodeContext) []Endpoint {
	getsConnections := func(e Endpoint) bool { return n.weight(svc, e.Endpoint) > 0 }
	hints := hinted(ready, n.NodeName, func(e Endpoint) []string { return e.ForNodes })
	if slices.ContainsFunc(hints, getsConnections) {
		return hints
	}
	hints = hinted(ready, n.zone(), func(e Endpoint) []string { return e.ForZones })
	if slices.ContainsFunc(hints, getsConnections) {
		return hints
	}
	return ready
}

// hinted returns the endpoints whose hints include the name, or none if any endpoint has no hints.
func hinted(ready []Endpoint, name string, hints func(Endpoint) []string) []Endpoint {
	if name == "" || slices.ContainsFunc(ready, func(e Endpoint) bool { return len(hints(e)) == 0 }) {
		return nil
	}
	return filter(ready, func(e Endpoint) bool { return slices.Contains(hints(e), name) })
}

// filter returns the endpoints to keep. It usually keeps all or none, so it copies only from the first dropped endpoint on.
func filter(all []Endpoint, keep func(Endpoint) bool) []Endpoint {
	first := slices.IndexFunc(all, func(e Endpoint) bool { return !keep(e) })
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

// refusals maps addresses of endpoints to the reasons why they get no traffic on this node.
type refusals map[netip.Addr]error

func refusedEndpoints(svc *model.Service, n *nodeContext) refusals {
	var refused refusals
	for _, slice := range svc.Slices {
		for i := range slice.Endpoints {
			addr := slice.Endpoints[i].Addr
			if err := n.checkEndpoint(addr); err != nil {
				if refused == nil {
					refused = refusals{}
				}
				refused[addr] = err
			}
		}
	}
	return refused
}

var errVirtual = errors.New("is bound on this node for a Service, so packets to it would be delivered to the node itself")

// checkEndpoint returns why an address cannot be an endpoint, or nil if it can. A gateway can be an endpoint. So can the first address of a
// subnet if the kernel treats it as a host address.
func (n *nodeContext) checkEndpoint(a netip.Addr) error {
	if n.virtual.has(a) {
		return errVirtual
	}
	if role, ofNetwork := n.network[a]; ofNetwork && role.Kind == kernel.Broadcast {
		return fmt.Errorf("is %s", role)
	}
	return inet.CheckUnicast(a)
}
