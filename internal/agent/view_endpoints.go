package agent

import (
	"net/netip"
	"slices"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// viewEndpoints lists the endpoints that the Service names, and those that drain though it names them no more.
func (a *Agent) viewEndpoints(now time.Time, wanted *want.Server, f compile.FrontDescription) []view.Endpoint {
	there := map[netip.AddrPort]kernel.ObservedDestination{}
	if a.known.State() != nil {
		for _, d := range a.known.State().Servers[wanted.Key].For(f.Key.Addr.Port()).Destinations {
			there[d.Addr] = d
		}
	}
	all := []view.Endpoint{}
	for _, e := range f.Endpoints {
		observed, written := there[e.Addr]
		delete(there, e.Addr)
		shown := view.Endpoint{Address: e.Addr, Pod: e.Pod, Node: e.Node, Zone: e.Zone}
		if written {
			shown.Weight = &observed.Weight
		}
		a.viewState(now, &shown, wanted, e, observed, written)
		all = append(all, shown)
	}
	for addr, d := range there {
		shown := view.Endpoint{Address: addr, Weight: &d.Weight, State: view.Draining}
		shown.Since = a.drainingSince(wanted.Key, d.Destination)
		all = append(all, shown)
	}
	slices.SortFunc(all, func(x, y view.Endpoint) int { return x.Address.Compare(y.Address) })
	return all
}

// viewState says what becomes of new connections to an endpoint.
func (a *Agent) viewState(
	now time.Time, shown *view.Endpoint, wanted *want.Server, e compile.EndpointDescription, observed kernel.ObservedDestination, written bool,
) {
	i := slices.IndexFunc(wanted.Destinations, func(d kernel.Destination) bool { return d.Addr == at(wanted.Key, e.Addr) })
	if i >= 0 {
		shown.Wanted = &wanted.Destinations[i].Weight
	}
	switch {
	case i >= 0 && !written:
		shown.State = view.Unwritten
	case i >= 0 && *shown.Wanted == 0:
		shown.State = view.Stopped
	case i >= 0 && a.ramps.Of(wanted.Key).Weight(now, wanted, wanted.Destinations[i]) < *shown.Wanted:
		shown.State = view.Rising
		began := a.ramps.Of(wanted.Key)[at(wanted.Key, e.Addr)]
		shown.Since = &began
	case i >= 0 && !e.Ready:
		shown.State = view.Serving
	case i >= 0:
		shown.State = view.Ready
	case written:
		shown.State = view.Draining
		shown.Since = a.drainingSince(wanted.Key, observed.Destination)
	case e.Terminating:
		shown.State = view.Terminating
	case e.Ready:
		shown.State = view.NotMeant
	default:
		shown.State = view.Unready
	}
}

// at is the address under which a virtual server has an endpoint: one for all ports has it without its port.
func at(server kernel.ServerKey, endpoint netip.AddrPort) netip.AddrPort {
	if server == server.AllPorts() {
		return netip.AddrPortFrom(endpoint.Addr(), 0)
	}
	return endpoint
}

func (a *Agent) drainingSince(key kernel.ServerKey, d kernel.Destination) *time.Time {
	d.Addr = at(key, d.Addr)
	since, known := a.draining.Of(key)[d]
	if !known {
		return nil
	}
	return &since
}
