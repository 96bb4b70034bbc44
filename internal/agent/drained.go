package agent

import (
	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// drained are the destinations that somebody set to weight 0 and that have no connection left through this node. Each is told of
// once: whoever waits to remove an endpoint waits for this.
type drained map[kernel.ServerDestination]struct{}

// update follows a reading of the whole kernel, and returns the destinations that are drained since then.
func (d *drained) update(w *want.State, have *kernel.State) []kernel.ServerDestination {
	now := drained{}
	var fresh []kernel.ServerDestination
	for key, server := range w.Servers {
		for _, wanted := range server.Destinations {
			if wanted.Weight > 0 || connectionsOf(have.Servers[key], wanted) != 0 {
				continue
			}
			entry := kernel.ServerDestination{Server: key, Destination: kernel.Destination{Addr: wanted.Addr}}
			if now[entry] = struct{}{}; !d.has(entry) {
				fresh = append(fresh, entry)
			}
		}
	}
	*d = now
	return fresh
}

func (d *drained) has(entry kernel.ServerDestination) bool {
	_, ok := (*d)[entry]
	return ok
}

// connectionsOf counts the connections of a destination that has weight 0 in the kernel; -1 where there is none.
func connectionsOf(observed kernel.ObservedServer, wanted kernel.Destination) int {
	for _, d := range observed.Destinations {
		if d.Addr == wanted.Addr && d.Weight == 0 {
			return int(d.Stats.Connections())
		}
	}
	return -1
}

// logDrained says which endpoints nobody uses any more through this node.
func (a *Agent) logDrained() {
	for _, entry := range a.drained.update(a.cluster.Want(), a.have) {
		a.log.Info("endpoint is drained: its weight is 0 and no connection is left through this node",
			zap.String("service", a.cluster.Want().Servers[entry.Server].Owner),
			zap.Stringer("server", entry.Server), zap.Stringer("endpoint", entry.Addr))
	}
}
