package compile

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// target is one endpoint of one Service port.
type target struct {
	addr     netip.AddrPort
	endpoint *model.Endpoint
}

// targets lists what serves a Service port in a family, sorted by address and without duplicates.
func targets(svc *model.Service, port model.ServicePort, f inet.Family) []target {
	var all []target
	for _, slice := range svc.Slices {
		if slice.Family != f {
			continue
		}
		for _, p := range slice.Ports {
			if p.Name != port.Name || p.Protocol != port.Protocol {
				continue
			}
			for i := range slice.Endpoints {
				e := &slice.Endpoints[i]
				if reasonToRefuse(e.Addr) == "" {
					all = append(all, target{netip.AddrPortFrom(e.Addr, p.Port), e})
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

// rank orders the states of an endpoint: what gets connections first.
func rank(e *model.Endpoint) int {
	switch {
	case e.Ready && !e.Terminating:
		return 0
	case e.Ready:
		return 1
	case e.Serving && e.Terminating:
		return 2
	}
	return 3
}

// choose picks the targets for new connections: the ready ones, or, when none is ready, those that still serve while they
// terminate, so that a rolling update of the last pod loses nobody.
func choose(all []target) []target {
	chosen := filter(all, func(e *model.Endpoint) bool { return e.Ready })
	if len(chosen) == 0 {
		chosen = filter(all, func(e *model.Endpoint) bool { return e.Serving && e.Terminating })
	}
	return chosen
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

func destinations(chosen []target) []kernel.Destination {
	ds := make([]kernel.Destination, len(chosen))
	for i, t := range chosen {
		ds[i] = kernel.Destination{Addr: t.addr, Weight: 1}
	}
	return ds
}

// reasonToRefuse says why an address can be neither an endpoint nor a virtual address; it is empty for a good one.
func reasonToRefuse(a netip.Addr) string {
	switch {
	case !a.IsValid() || a.IsUnspecified():
		return "is no host's address"
	case a.IsLoopback():
		return "is a loopback address, which would be every node's own"
	case a.IsMulticast():
		return "is a multicast address"
	case a.IsLinkLocalUnicast():
		return "is a link-local address, which means another host on every link"
	case a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return "is the broadcast address"
	}
	return ""
}

// endpointProblems names the endpoints that are refused, once each.
func endpointProblems(svc *model.Service) []model.Problem {
	var problems []model.Problem
	for _, slice := range svc.Slices {
		for i := range slice.Endpoints {
			addr := slice.Endpoints[i].Addr
			if reason := reasonToRefuse(addr); reason != "" {
				problems = append(problems, model.Problem{
					Object:  "Service " + svc.ID.String(),
					Service: svc.ID,
					Field:   fmt.Sprintf("EndpointSlice %s endpoints[%d].addresses", slice.Name, i),
					Value:   addr.String(),
					Message: "this endpoint gets no traffic: the address " + reason + "; want the unicast address of a pod or host",
				})
			}
		}
	}
	return problems
}
