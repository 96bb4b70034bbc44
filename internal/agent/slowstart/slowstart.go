// Package slowstart raises the weights of new endpoints step by step if their Service asks for a slow start. It decides the weight of a
// destination at a given time; the agent writes it.
//
// The kernel keeps the state (I9): after a restart a ramp continues from the kernel's weight.
//
// May import: compile (the number of steps), kernel, want. It has no clock: callers pass the time.
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

// Ramp holds the start times of slow starts, for each destination of a virtual server whose weight is below the wanted one. It is immutable.
type Ramp map[netip.AddrPort]time.Time

// Weight returns the weight that a destination should have at a time. It rises in equal steps, starting with the first step.
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

// Ramps are the ramps of all virtual servers.
type Ramps struct {
	servers map[kernel.ServerKey]Ramp
	// next is the time of the next step; zero if no weight rises.
	next time.Time
}

// New returns an empty set of ramps.
func New() *Ramps { return &Ramps{servers: map[kernel.ServerKey]Ramp{}} }

// Of returns the ramp of a virtual server; nil if none of its weights rises.
func (r *Ramps) Of(key kernel.ServerKey) Ramp { return r.servers[key] }

// Servers iterates over the virtual servers with a rising weight, in no order.
func (r *Ramps) Servers() iter.Seq[kernel.ServerKey] { return maps.Keys(r.servers) }

// Next returns the time of the next step; zero if no weight rises.
func (r *Ramps) Next() time.Time { return r.next }

// Due reports whether a step is due.
func (r *Ramps) Due(now time.Time) bool { return !r.next.IsZero() && !now.Before(r.next) }

// Retry sets the time of the next step after a failed write.
func (r *Ramps) Retry(at time.Time) { r.next = at }

// UpdateAll updates every virtual server, and drops those that are no longer wanted.
func (r *Ramps) UpdateAll(now time.Time, w *want.State, have *kernel.State) {
	maps.DeleteFunc(r.servers, func(key kernel.ServerKey, _ Ramp) bool { return w.Servers[key] == nil })
	r.Update(now, maps.Keys(w.Servers), w, have)
}

// Update finds the destinations of these virtual servers that are below their wanted weight. In a virtual server that does not exist yet all
// destinations are new, so they all start with their full weight.
func (r *Ramps) Update(now time.Time, keys iter.Seq[kernel.ServerKey], w *want.State, have *kernel.State) {
	for key := range keys {
		ramp := Ramp{}
		observed, exists := have.Servers[key]
		if server := w.Servers[key]; server != nil && server.SlowStart > 0 && exists {
			ramp = r.rampOf(now, server, observed)
		}
		if r.servers[key] = ramp; len(ramp) == 0 {
			delete(r.servers, key)
		}
	}
	r.next = r.nextStep(now, w)
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
		began, known := r.servers[server.Key][d.Addr]
		if !known {
			began = startOf(now, weight, d.Weight, server.SlowStart)
		}
		ramp[d.Addr] = began
	}
	return ramp
}

// startOf returns when a ramp to the wanted weight must have begun to reach the given weight now.
func startOf(now time.Time, weight, wanted uint32, slowStart time.Duration) time.Time {
	passed := time.Duration(float64(slowStart)*float64(weight)/float64(wanted)) - stepOf(slowStart)
	return now.Add(-max(passed, 0))
}

func stepOf(slowStart time.Duration) time.Duration { return slowStart / compile.SlowStartSteps }

// nextStep returns the earliest next step of all ramps.
func (r *Ramps) nextStep(now time.Time, w *want.State) time.Time {
	var next time.Time
	for key, ramp := range r.servers {
		server := w.Servers[key]
		if server == nil {
			continue
		}
		for _, began := range ramp {
			step := stepOf(server.SlowStart)
			at := began.Add((now.Sub(began)/step + 1) * step)
			if next.IsZero() || at.Before(next) {
				next = at
			}
		}
	}
	return next
}

// IsStep reports whether an operation raises a weight, and so does not repair drift.
func (r *Ramps) IsStep(op kernel.Op) bool {
	d, ok := op.Object.(kernel.ServerDestination)
	if !ok || op.Verb != kernel.Update {
		return false
	}
	_, rising := r.servers[d.Server][d.Addr]
	return rising
}
