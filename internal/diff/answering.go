package diff

import (
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// answers reports whether new connections to a wanted virtual server already reach a wanted endpoint. When the agent starts, kube-proxy
// or an earlier agent may have created the virtual server.
func answers(w *Target, have *kernel.State, key kernel.ServerKey) bool {
	wanted := w.Server(key)
	return wanted != nil && slices.ContainsFunc(have.Servers[key].Destinations, func(d kernel.ObservedDestination) bool {
		return takesNew(d) && sends(wanted, d)
	})
}

// settled reports whether new connections reach only wanted endpoints.
func settled(w *Target, have *kernel.State, key kernel.ServerKey) bool {
	return answers(w, have, key) && !slices.ContainsFunc(have.Servers[key].Destinations, func(d kernel.ObservedDestination) bool {
		return d.Weight > 0 && !sends(w.Server(key), d)
	})
}

func takesNew(d kernel.ObservedDestination) bool {
	return d.Weight > 0 && d.Forwarding == kernel.ForwardMasq
}

// match returns the virtual server that receives new connections to a port once all wanted virtual servers exist. While the port's own
// virtual server exists, it receives them even if it is unwanted.
func match(w *Target, have *kernel.State, port kernel.ServerKey) kernel.ServerKey {
	return kernel.MatchKey(port, func(key kernel.ServerKey) bool {
		_, exists := have.Servers[port]
		return key == port && exists || w.Serves(key, port)
	})
}

func answersAt(w *Target, have *kernel.State, addr netip.Addr) bool {
	_, bound := have.Addresses[addr]
	return bound && slices.ContainsFunc(w.ServersAt(addr), func(key kernel.ServerKey) bool { return answers(w, have, key) })
}
