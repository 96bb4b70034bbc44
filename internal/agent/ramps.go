package agent

import (
	"iter"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// ramps are the destinations whose weight is rising, each with the time at which it began. What a restart forgets is read off
// the weight that the kernel has: it is where the rise has come to.
type ramps struct {
	began map[kernel.ServerKey]map[netip.AddrPort]time.Time
	// next is when the next weight rises; zero when none does.
	next time.Time
}

// updateAll is update for all virtual servers.
func (r *ramps) updateAll(now time.Time, w *want.State, have *kernel.State) {
	maps.DeleteFunc(r.began, func(key kernel.ServerKey, _ map[netip.AddrPort]time.Time) bool { return w.Servers[key] == nil })
	r.update(now, maps.Keys(w.Servers), w, have)
}

// update notes which of the virtual servers' destinations are below their full weight. In a virtual server that is not there
// yet all are new, and none has to wait for the others.
func (r *ramps) update(now time.Time, keys iter.Seq[kernel.ServerKey], w *want.State, have *kernel.State) {
	for key := range keys {
		rising := map[netip.AddrPort]time.Time{}
		observed, stands := have.Servers[key]
		if server := w.Servers[key]; server != nil && server.SlowStart > 0 && stands {
			rising = r.rising(now, server, observed)
		}
		if r.began[key] = rising; len(rising) == 0 {
			delete(r.began, key)
		}
	}
	r.next = r.nextStep(now, w)
}

func (r *ramps) rising(now time.Time, server *want.Server, observed kernel.ObservedServer) map[netip.AddrPort]time.Time {
	rising := map[netip.AddrPort]time.Time{}
	for _, d := range server.Destinations {
		at := weightIn(observed, d.Addr)
		if at >= d.Weight {
			continue
		}
		began, known := r.began[server.Key][d.Addr]
		if !known {
			began = beganAt(now, at, d.Weight, server.SlowStart)
		}
		rising[d.Addr] = began
	}
	return rising
}

// beganAt is when a rise to the full weight must have begun that has just come to this weight.
func beganAt(now time.Time, at, full uint32, takes time.Duration) time.Time {
	passed := time.Duration(float64(takes)*float64(at)/float64(full)) - stepOf(takes)
	return now.Add(-max(passed, 0))
}

func weightIn(observed kernel.ObservedServer, addr netip.AddrPort) uint32 {
	i := slices.IndexFunc(observed.Destinations, func(d kernel.ObservedDestination) bool { return d.Addr == addr })
	if i < 0 {
		return 0
	}
	return observed.Destinations[i].Weight
}

// weight is what a destination's weight is to be by now: it rises in equal steps, and the first one comes at once.
func (r *ramps) weight(now time.Time, server *want.Server, d kernel.Destination) uint32 {
	began, rising := r.began[server.Key][d.Addr]
	if !rising {
		return d.Weight
	}
	step := now.Sub(began)/stepOf(server.SlowStart) + 1
	if step >= compile.SlowStartSteps {
		return d.Weight
	}
	return max(uint32(uint64(d.Weight)*uint64(step)/compile.SlowStartSteps), 1)
}

func stepOf(slowStart time.Duration) time.Duration { return slowStart / compile.SlowStartSteps }

// nextStep is the next time of all.
func (r *ramps) nextStep(now time.Time, w *want.State) time.Time {
	var next time.Time
	for key, rising := range r.began {
		server := w.Servers[key]
		if server == nil {
			continue
		}
		for _, began := range rising {
			step := stepOf(server.SlowStart)
			at := began.Add((now.Sub(began)/step + 1) * step)
			if next.IsZero() || at.Before(next) {
				next = at
			}
		}
	}
	return next
}

// due says whether a weight is to rise now.
func (r *ramps) due(now time.Time) bool { return !r.next.IsZero() && !now.Before(r.next) }

// steps counts the operations of a plan that make weights rise.
func (r *ramps) steps(p diff.Plan) int {
	n := 0
	for _, op := range p.Ops() {
		if d, ok := op.Object.(kernel.ServerDestination); ok && op.Verb == kernel.Update {
			if _, rising := r.began[d.Server][d.Addr]; rising {
				n++
			}
		}
	}
	return n
}
