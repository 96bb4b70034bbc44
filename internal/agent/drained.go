package agent

import (
	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// drained are the destinations that somebody set to weight 0 and that have no connection left through this node. Each is told of
// once: whoever waits to remove an endpoint waits for this.
type drained struct {
	empty map[kernel.ServerDestination]struct{}
	// stopped counts all that were set to weight 0.
	stopped int
}

// update follows a reading of the whole kernel, and returns the destinations that are drained since then.
func (d *drained) update(w *want.State, have *kernel.State) []kernel.ServerDestination {
	before := d.empty
	d.empty, d.stopped = map[kernel.ServerDestination]struct{}{}, 0
	var fresh []kernel.ServerDestination
	for key, server := range w.Servers {
		for _, wanted := range server.Destinations {
			connections, stopped := connectionsOf(have.Servers[key], wanted)
			if wanted.Weight > 0 || !stopped || w.Lingers(key) {
				continue
			}
			if d.stopped++; connections > 0 {
				continue
			}
			entry := kernel.ServerDestination{Server: key, Destination: kernel.Destination{Addr: wanted.Addr}}
			d.empty[entry] = struct{}{}
			if _, told := before[entry]; !told {
				fresh = append(fresh, entry)
			}
		}
	}
	return fresh
}

// connectionsOf counts the connections of a destination, if it has weight 0 in the kernel.
func connectionsOf(observed kernel.ObservedServer, wanted kernel.Destination) (n uint32, stopped bool) {
	for _, d := range observed.Destinations {
		if d.Addr == wanted.Addr && d.Weight == 0 {
			return d.Stats.Connections(), true
		}
	}
	return 0, false
}

// noteDrained says which endpoints nobody uses any more through this node.
func (a *Agent) noteDrained(r *Report) {
	if r.Full && r.Err == nil {
		for _, entry := range a.drained.update(a.cluster.Want(), a.have) {
			a.log.Info("endpoint is drained: its weight is 0 and no connection is left through this node",
				zap.String("service", a.cluster.Want().Servers[entry.Server].Owner),
				zap.Stringer("server", entry.Server), zap.Stringer("endpoint", entry.Addr))
		}
	}
	r.Stopped, r.Drained = a.drained.stopped, len(a.drained.empty)
}
