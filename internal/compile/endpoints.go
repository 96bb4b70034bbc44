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
	slice *model.EndpointSlice
}

// portEndpoints are the endpoints of one Service port in one family, by traffic policy.
type portEndpoints struct {
	// all is sorted by address, without duplicates.
	all []Endpoint
	// own contains the endpoints that may connect to themselves. These are the pods on this node, because their packets pass through this node's IPVS.
	// It includes endpoints that get no new connections, because they may still have open ones.
	own []Endpoint
	// cluster contains the endpoints for new connections under the policy Cluster, and local those under the policy
	// Local.
	cluster, local *pool
}

// pool contains the endpoints for new connections to some of a Service port's frontends. The frontends share the list of destinations.
type pool struct {
	endpoints []Endpoint
	// The following fields are set when a frontend first needs them (see balance).
	balanced     bool
	destinations []kernel.Destination
	// scheduler is the scheduler of a new virtual server, and alike the one that an existing virtual server may keep.
	scheduler, alike string
}

func endpointsOf(svc *model.Service, all []Endpoint, n *nodeContext) portEndpoints {
	own := filter(all, func(e Endpoint) bool { return n.mayUseItself(e.Endpoint) })
	here := filter(own, func(e Endpoint) bool { return isOn(e.Endpoint, n.NodeName) })
	return portEndpoints{
		all:     all,
		own:     own,
		cluster: &pool{endpoints: available(all, func(ready []Endpoint) []Endpoint { return byHints(svc, ready, n) })},
		local:   &pool{endpoints: available(here, func(ready []Endpoint) []Endpoint { return ready })},
	}
}

// allEndpoints sorts the endpoints of slices, and reports whether every address occurs once.
func allEndpoints(from slicePorts, node string, refused refusals) (sorted []Endpoint, distinct bool) {
	all := make([]Endpoint, 0, from.size())
	for _, p := range from {
		for i := range p.slice.Endpoints {
			e := &p.slice.Endpoints[i]
			if refused[e.Addr] == nil {
				all = append(all, Endpoint{netip.AddrPortFrom(e.Addr, p.Port), e, p.slice})
			}
		}
	}
	// An address is in two slices while an endpoint moves between them, or when a new pod has the address of a terminating one. The endpoint that can
	// serve takes precedence. If the slices disagree only about its node, the endpoint counts as local, as in kube-proxy. Otherwise a second slice
	// could remove it from the policy Local.
	all = mergeRuns(all, func(a, b Endpoint) int {
		if order := a.Addr.Compare(b.Addr); order != 0 {
			return order
		}
		return cmp.Compare(rank(a.Endpoint, node), rank(b.Endpoint, node))
	})
	sorted = slices.CompactFunc(all, func(a, b Endpoint) bool { return a.Addr == b.Addr })
	return sorted, len(sorted) == len(all)
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
	hints := hinted(ready, n.NodeName, func(h *model.Hints) []string { return h.ForNodes })
	if slices.ContainsFunc(hints, getsConnections) {
		return hints
	}
	hints = hinted(ready, n.zone(), func(h *model.Hints) []string { return h.ForZones })
	if slices.ContainsFunc(hints, getsConnections) {
		return hints
	}
	return ready
}

// hinted returns the endpoints whose hints include the name, or none if any endpoint has no hints.
func hinted(ready []Endpoint, name string, hints func(*model.Hints) []string) []Endpoint {
	if name == "" || slices.ContainsFunc(ready, func(e Endpoint) bool { return e.Hints == nil || len(hints(e.Hints)) == 0 }) {
		return nil
	}
	return filter(ready, func(e Endpoint) bool { return slices.Contains(hints(e.Hints), name) })
}

// filter returns the endpoints to keep. It usually keeps all or none, so it counts them before it copies any.
func filter(all []Endpoint, keep func(Endpoint) bool) []Endpoint {
	n := 0
	for _, e := range all {
		if keep(e) {
			n++
		}
	}
	if n == len(all) {
		return all
	}
	kept := make([]Endpoint, 0, n)
	for _, e := range all {
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

func refusedEndpoints(unchecked []*model.EndpointSlice, n *nodeContext) refusals {
	var refused refusals
	for _, slice := range unchecked {
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
	if n.Mode == kernel.Userspace && a.IsLoopback() && n.own(inet.FamilyOf(a).Loopback()) {
		return nil // the agent serves only loopback addresses: a process of this machine, for development
	}
	return inet.CheckUnicast(a)
}
