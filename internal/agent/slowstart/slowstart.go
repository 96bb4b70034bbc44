// Package slowstart raises the weights of new endpoints step by step if their Service requests a slow start. It
// computes the weights, and the agent writes them.
//
// The state is in the kernel (I9). After a restart, a ramp continues from the weight in the kernel.
//
// May import: compile (the number of steps), kernel, want. The package has no clock: callers pass the time.
package slowstart

import (
	"iter"
	"maps"
	"net/netip"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Ramp maps destinations of one virtual server to the times at which their slow starts began. It is immutable.
type Ramp map[netip.AddrPort]time.Time

// Weight returns the weight that a destination should have now. The weight rises in equal steps, and the first step
// takes effect immediately.
func (r Ramp) Weight(now time.Time, server *want.Server, d kernel.Destination) uint32 {
	began, rising := r[d.Addr]
	if !rising {
		return d.Weight
	}
	step := now.Sub(began)/stepOf(server.SlowStart) + 1
	if step >= compile.SlowStartSteps {
		return d.Weight
	}
	return max(uint32(uint64(d.Weight)*uint64(step)/compile.SlowStartSteps), 1)
}

// Ramps contains the ramps of all virtual servers.
type Ramps struct {
	servers map[kernel.ServerKey]*rising
	// queue orders the virtual servers by their next step, because there may be thousands of them.
	queue queue
}

// New returns empty Ramps.
func New() *Ramps { return &Ramps{servers: map[kernel.ServerKey]*rising{}} }

// Of returns the ramp of a virtual server, or nil if none of its weights is rising.
func (r *Ramps) Of(key kernel.ServerKey) Ramp {
	if s := r.servers[key]; s != nil {
		return s.ramp
	}
	return nil
}

// Next returns the time of the next step, or zero if there is none.
func (r *Ramps) Next() time.Time {
	if len(r.queue) == 0 {
		return time.Time{}
	}
	return r.queue[0].next
}

// Due reports whether a step is due.
func (r *Ramps) Due(now time.Time) bool { return len(r.queue) > 0 && !now.Before(r.queue[0].next) }

// TakeDue returns the virtual servers for which a step is due, and schedules their next steps.
func (r *Ramps) TakeDue(now time.Time) (due []kernel.ServerKey) {
	for r.Due(now) {
		due = append(due, r.queue[0].key)
		r.queue.schedule(r.queue[0], r.queue[0].stepAfter(now))
	}
	return due
}

// Retry postpones the due steps.
func (r *Ramps) Retry(now, at time.Time) {
	for r.Due(now) {
		r.queue.schedule(r.queue[0], at)
	}
}

// UpdateAll updates these virtual servers, and drops all others.
func (r *Ramps) UpdateAll(now time.Time, wanted iter.Seq2[kernel.ServerKey, *want.Server], have *kernel.State) {
	gone := maps.Clone(r.servers)
	for key, server := range wanted {
		delete(gone, key)
		r.Update(now, key, server, have)
	}
	for key := range gone {
		r.Update(now, key, nil, have)
	}
}

// Update finds the destinations of a virtual server that are below their wanted weight. server is nil if the virtual
// server is not wanted. In a new virtual server, all destinations start at full weight.
func (r *Ramps) Update(now time.Time, key kernel.ServerKey, server *want.Server, have *kernel.State) {
	var ramp Ramp
	observed, exists := have.Servers[key]
	if server != nil && server.SlowStart > 0 && exists {
		ramp = r.rampOf(now, server, observed)
	}
	switch s := r.servers[key]; {
	case len(ramp) > 0:
		r.replace(key, ramp, stepOf(server.SlowStart), now)
	case s != nil:
		r.queue.schedule(s, time.Time{})
		delete(r.servers, key)
	}
}

func (r *Ramps) replace(key kernel.ServerKey, ramp Ramp, step time.Duration, now time.Time) {
	s, known := r.servers[key]
	if !known {
		s = &rising{key: key, index: -1}
		r.servers[key] = s
	}
	s.ramp, s.step = ramp, step
	r.queue.schedule(s, s.stepAfter(now))
}

func (r *Ramps) rampOf(now time.Time, server *want.Server, observed kernel.ObservedServer) Ramp {
	ramp := Ramp{}
	for _, d := range server.Destinations {
		weight := uint32(0)
		if have, exists := observed.Destination(d.Addr); exists {
			weight = have.Weight
		}
		if weight >= d.Weight {
			continue
		}
		began, known := r.Of(server.Key)[d.Addr]
		if !known {
			began = startOf(now, weight, d.Weight, server.SlowStart)
		}
		ramp[d.Addr] = began
	}
	return ramp
}

// startOf returns the start time of a ramp that has the given weight now.
func startOf(now time.Time, weight, wanted uint32, slowStart time.Duration) time.Time {
	passed := time.Duration(float64(slowStart)*float64(weight)/float64(wanted)) - stepOf(slowStart)
	return now.Add(-max(passed, 0))
}

func stepOf(slowStart time.Duration) time.Duration { return slowStart / compile.SlowStartSteps }

// IsStep reports whether an operation is a step of a ramp. A step is not a repair.
func (r *Ramps) IsStep(op kernel.Op) bool {
	d, ok := op.Object.(kernel.ServerDestination)
	if !ok || op.Verb != kernel.Update {
		return false
	}
	_, rising := r.Of(d.Server)[d.Addr]
	return rising
}
