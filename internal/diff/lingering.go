package diff

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Lingering picks, among the given keys, the virtual servers that stay for the sake of their open connections though another one
// takes their place: one for all ports that of a single port, or the other way round. The kernel would cut connections with their
// virtual server, and nobody asked for that (I13), so there is no limit in time. As with destinations only TCP has an end to wait
// for: flows of UDP and SCTP move on at once.
func Lingering(w *want.State, have *kernel.State, keys iter.Seq[kernel.ServerKey], opt Options) map[kernel.ServerKey]*want.Server {
	lingering := map[kernel.ServerKey]*want.Server{}
	for key := range keys {
		observed, stands := have.Servers[key]
		if !stands || w.Servers[key] != nil && !w.Lingers(key) {
			continue
		}
		if server := successorOf(w, key, observed); server != nil && stays(w, have, key, observed, opt) {
			lingering[key] = server
		}
	}
	return lingering
}

// stays says whether a virtual server of ours has open connections, as far as we know. One that kube-proxy left behind becomes ours
// first, of whatever protocol: not being ours it would stand there for ever, and take its port's packets to the endpoints of that day.
func stays(w *want.State, have *kernel.State, key kernel.ServerKey, observed kernel.ObservedServer, opt Options) bool {
	if !recorded(w, have, key, opt) {
		_, bound := have.Addresses[key.Addr.Addr()]
		return opt.mayAdopt(key) && bound && !have.HasMember(want.Seal(w.Base.Ledger, key.Family()))
	}
	if key.Protocol != inet.TCP {
		return false
	}
	return opt.Fresh == nil || !opt.Fresh(key) || slices.ContainsFunc(observed.Destinations, func(d kernel.ObservedDestination) bool {
		return d.Stats.Connections() > 0
	})
}

// successorOf says what a virtual server is to be while it lingers, or nil where nothing has taken its place.
func successorOf(w *want.State, key kernel.ServerKey, observed kernel.ObservedServer) *want.Server {
	if key == key.AllPorts() {
		return besideNarrow(w, key, observed)
	}
	wide := w.Servers[key.AllPorts()]
	if wide == nil || w.Lingers(wide.Key) || !wide.Serves(key) {
		return nil
	}
	// The kernel finds it before the one for all ports, so it still gets this port's new connections.
	lingering := *wide
	lingering.Key, lingering.Ports, lingering.Members = key, nil, limitedMember(w, wide, key)
	lingering.Destinations = slices.Clone(wide.Destinations)
	for i := range lingering.Destinations {
		d := &lingering.Destinations[i]
		d.Addr = netip.AddrPortFrom(d.Addr.Addr(), key.Addr.Port())
	}
	return &lingering
}

// limitedMember records the limits of a lingering virtual server's destinations, as compile does for all others: who forgets them while
// they stand never sees them again.
func limitedMember(w *want.State, wide *want.Server, key kernel.ServerKey) []kernel.Member {
	if !slices.ContainsFunc(wide.Destinations, func(d kernel.Destination) bool { return d.Upper > 0 }) {
		return nil
	}
	return []kernel.Member{{Set: w.Base.Limited[key.Family()], Element: want.LedgerEntry(w.Base.Ledger, key).Element}}
}

// besideNarrow is a virtual server for all ports beside those of single ports. New connections do not come to it, as long as the
// ports that nobody serves stay closed.
func besideNarrow(w *want.State, key kernel.ServerKey, observed kernel.ObservedServer) *want.Server {
	narrow := narrowAt(w, key)
	if len(narrow) == 0 { // or the address is the node's own now: there it would take the packets to every port of the machine
		return nil
	}
	lingering := &want.Server{Server: observed.Server, Owner: w.Servers[narrow[0]].Owner, Members: []kernel.Member{{
		Set: w.Base.AllPorts[key.Family()], Element: kernel.Element{Addr: key.Addr.Addr()},
	}}}
	for _, d := range observed.Destinations {
		if slices.ContainsFunc(narrow, func(n kernel.ServerKey) bool { return hasEndpoint(w.Servers[n], d.Addr.Addr()) }) {
			lingering.Destinations = append(lingering.Destinations, d.Destination)
		}
	}
	return lingering
}

// narrowAt are the wanted virtual servers of single ports at the address and with the protocol of one for all, sorted.
func narrowAt(w *want.State, wide kernel.ServerKey) []kernel.ServerKey {
	var narrow []kernel.ServerKey
	for _, key := range w.ServersAt(wide.Addr.Addr()) {
		if key != wide && key.AllPorts() == wide && !w.Lingers(key) {
			narrow = append(narrow, key)
		}
	}
	slices.SortFunc(narrow, kernel.ServerKey.Compare)
	return narrow
}

func hasEndpoint(server *want.Server, addr netip.Addr) bool {
	return slices.ContainsFunc(server.Destinations, func(d kernel.Destination) bool { return d.Addr.Addr() == addr })
}
