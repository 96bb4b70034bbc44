package snapshot

import (
	"net/netip"
	"slices"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// endpoints returns the endpoints in the Service's slices, and draining endpoints that the slices no longer contain.
func (s *Snapshot) endpoints(listed []compile.Endpoint, f Frontend) []view.Endpoint {
	written := map[netip.AddrPort]kernel.ObservedDestination{}
	for _, d := range f.Observed.For(f.Port.Addr.Port()).Destinations {
		written[d.Addr] = d
	}
	all := []view.Endpoint{}
	for _, e := range listed {
		shown := view.Endpoint{Address: e.Addr, Pod: e.Pod, Node: e.Node, Zone: e.Zone}
		if d, exists := written[e.Addr]; exists {
			shown.Weight = &d.Weight
			delete(written, e.Addr)
		}
		s.setState(&shown, f, e)
		all = append(all, shown)
	}
	for addr, d := range written {
		all = append(all, view.Endpoint{Address: addr, Weight: &d.Weight, State: view.Draining, Since: f.drainingSince(addr)})
	}
	slices.SortFunc(all, func(x, y view.Endpoint) int { return x.Address.Compare(y.Address) })
	return all
}

func (s *Snapshot) setState(shown *view.Endpoint, f Frontend, e compile.Endpoint) {
	addr := f.destinationOf(e.Addr)
	wanted, chosen := f.Wanted.Destination(addr)
	if chosen {
		shown.Wanted = &wanted.Weight
	}
	switch {
	case chosen && shown.Weight == nil:
		shown.State = view.Pending
	case chosen && wanted.Weight == 0:
		shown.State = view.Stopped
	case chosen && f.Ramp.Weight(s.Time, f.Wanted, wanted) < wanted.Weight:
		shown.State = view.SlowStart
		began := f.Ramp[addr]
		shown.Since = &began
	case chosen && !e.Ready:
		shown.State = view.Serving
	case chosen:
		shown.State = view.Ready
	case shown.Weight != nil:
		shown.State = view.Draining
		shown.Since = f.drainingSince(e.Addr)
	case e.Terminating:
		shown.State = view.Terminating
	case e.Ready:
		shown.State = view.Excluded
	default:
		shown.State = view.NotReady
	}
}

// destinationOf returns the address of an endpoint's destination. The port is 0 in an all-ports server.
func (f Frontend) destinationOf(endpoint netip.AddrPort) netip.AddrPort {
	if f.Wanted.Key == f.Wanted.Key.AllPorts() {
		return netip.AddrPortFrom(endpoint.Addr(), 0)
	}
	return endpoint
}

func (f Frontend) drainingSince(endpoint netip.AddrPort) *time.Time {
	since, known := f.Draining[f.destinationOf(endpoint)]
	if !known {
		return nil
	}
	return &since
}
