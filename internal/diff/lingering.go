package diff

import (
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// settleLingering decides which of the checked virtual servers stay because of open connections although another virtual server replaces
// them: an all-ports server for per-port servers, or vice versa. Deleting such a virtual server would end its connections although nothing
// in the cluster requires it (I13), so there is no time limit. As with destinations, this applies only to TCP connections: UDP and SCTP
// flows move immediately. ended is true if a virtual server no longer lingers.
func (t *Target) settleLingering(have *kernel.State, keys map[kernel.ServerKey]struct{}, touched *want.Touched, opt Options) (ended bool) {
	var lingered []kernel.ServerKey
	for key := range keys {
		if t.Lingers(key) {
			lingered = append(lingered, key)
			t.dismiss(key, touched)
		}
	}
	var stay []*want.Server
	for key := range keys {
		observed, exists := have.Servers[key]
		if !exists || t.Server(key) != nil {
			continue
		}
		if server := whileLingering(t, key, observed); server != nil && isUsed(t, have, key, observed, opt) {
			stay = append(stay, server)
		}
	}
	for _, server := range stay {
		t.linger(server, touched)
	}
	return slices.ContainsFunc(lingered, func(key kernel.ServerKey) bool { return !t.Lingers(key) })
}

// isUsed reports whether one of our virtual servers is known to have open connections. A virtual server of any protocol that kube-proxy
// left behind also lingers and becomes ours. If it stayed foreign, it would never be removed, and would send its port's packets to
// outdated endpoints.
func isUsed(w *Target, have *kernel.State, key kernel.ServerKey, observed kernel.ObservedServer, opt Options) bool {
	if !recorded(w, have, key, opt) {
		_, bound := have.Addresses[key.Addr.Addr()]
		return opt.mayAdopt(key) && bound && !have.HasMember(want.Seal(w.Base().Ledger, key.Family()))
	}
	if key.Protocol != inet.TCP {
		return false
	}
	return opt.Fresh == nil || !opt.Fresh(key) || slices.ContainsFunc(observed.Destinations, func(d kernel.ObservedDestination) bool {
		return d.Stats.Connections() > 0
	})
}

// whileLingering returns the wanted state of a virtual server that lingers; nil if nothing has replaced it.
func whileLingering(w *Target, key kernel.ServerKey, observed kernel.ObservedServer) *want.Server {
	if key == key.AllPorts() {
		return besidePerPort(w, key, observed)
	}
	allPorts := w.Server(key.AllPorts())
	if allPorts == nil || w.Lingers(allPorts.Key) || !allPorts.Serves(key) {
		return nil
	}
	// New connections to the port still match this virtual server, not the all-ports server, so it gets the same destinations.
	lingering := *allPorts
	lingering.Key, lingering.Ports, lingering.Members = key, nil, limitedMember(w, allPorts, key)
	lingering.Destinations = slices.Clone(allPorts.Destinations)
	for i := range lingering.Destinations {
		d := &lingering.Destinations[i]
		d.Addr = netip.AddrPortFrom(d.Addr.Addr(), key.Addr.Port())
	}
	return &lingering
}

// limitedMember records that a lingering virtual server's destinations have connection limits. Package compile does this for all other
// virtual servers. Without the record, the agent would never look up the limit.
func limitedMember(w *Target, allPorts *want.Server, key kernel.ServerKey) []kernel.Member {
	if !allPorts.Limited() {
		return nil
	}
	return []kernel.Member{{Set: w.Base().Limited[key.Family()], Element: want.LedgerEntry(w.Base().Ledger, key).Element}}
}

// besidePerPort returns the wanted state of a lingering all-ports server that per-port servers replace. It receives no new connections,
// because the unserved ports stay closed.
func besidePerPort(w *Target, key kernel.ServerKey, observed kernel.ObservedServer) *want.Server {
	perPort := perPortAt(w, key)
	if len(perPort) == 0 { // if the address is now the node's own, the server would receive the packets to every port
		return nil
	}
	lingering := &want.Server{Server: observed.Server, Owner: w.Server(perPort[0]).Owner}
	for _, set := range w.Base().AllPorts[key.Family()] {
		lingering.Members = append(lingering.Members, kernel.Member{Set: set, Element: kernel.Element{Addr: key.Addr.Addr()}})
	}
	for _, d := range observed.Destinations {
		if slices.ContainsFunc(perPort, func(p kernel.ServerKey) bool { return hasEndpoint(w.Server(p), d.Addr.Addr()) }) {
			lingering.Destinations = append(lingering.Destinations, d.Destination)
		}
	}
	return lingering
}

func perPortAt(w *Target, allPorts kernel.ServerKey) []kernel.ServerKey {
	var perPort []kernel.ServerKey
	for _, key := range w.ServersAt(allPorts.Addr.Addr()) {
		if key != allPorts && key.AllPorts() == allPorts && !w.Lingers(key) {
			perPort = append(perPort, key)
		}
	}
	slices.SortFunc(perPort, kernel.ServerKey.Compare)
	return perPort
}

func hasEndpoint(server *want.Server, addr netip.Addr) bool {
	return slices.ContainsFunc(server.Destinations, func(d kernel.Destination) bool { return d.Addr.Addr() == addr })
}
