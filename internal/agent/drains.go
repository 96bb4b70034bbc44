package agent

import (
	"slices"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// drains remembers since when destinations have been draining. That they drain is in the kernel (weight 0, unwanted); only
// the clock is ours, so a restart merely grants a fresh period (I9).
type drains struct {
	since    map[kernel.ServerKey]map[kernel.Destination]time.Time
	nextLook time.Time
}

// wholeServer stands for all destinations of a virtual server that lingers: it, too, waits for its last connection.
var wholeServer kernel.Destination

// update follows the passes: after a full one it looks at every virtual server, else at those that the plan concerned, and at
// those that were looked up for their connections.
func (d *drains) update(now time.Time, interval time.Duration, w *want.State, have *kernel.State, plan diff.Plan, full bool) {
	if d.since == nil {
		d.since = map[kernel.ServerKey]map[kernel.Destination]time.Time{}
	}
	if have == nil {
		return
	}
	if full || !now.Before(d.nextLook) {
		for _, key := range d.servers() {
			d.updateServer(now, w, have, key)
		}
	}
	if full {
		for _, key := range diff.Drains(w, have) {
			d.updateServer(now, w, have, key)
		}
	}
	for key := range w.Lingering {
		d.updateServer(now, w, have, key)
	}
	for _, phase := range plan.Phases {
		for _, op := range phase.Ops {
			switch o := op.Object.(type) {
			case kernel.ServerDestination:
				d.updateServer(now, w, have, o.Server)
			case kernel.Server:
				d.updateServer(now, w, have, o.Key)
			}
		}
	}
	if !now.Before(d.nextLook) {
		d.nextLook = now.Add(interval)
	}
}

func (d *drains) updateServer(now time.Time, w *want.State, have *kernel.State, key kernel.ServerKey) {
	before := d.since[key]
	delete(d.since, key)
	server := w.Servers[key]
	if server == nil {
		return
	}
	note := func(destination kernel.Destination) {
		since, known := before[destination]
		if !known {
			since = now
		}
		if d.since[key] == nil {
			d.since[key] = map[kernel.Destination]time.Time{}
		}
		d.since[key][destination] = since
	}
	if w.Lingers(key) {
		note(wholeServer)
	}
	for _, destination := range have.Servers[key].Destinations {
		if diff.Draining(server.Destinations, destination) {
			note(destination.Destination)
		}
	}
}

func (d *drains) any() bool { return len(d.since) > 0 }

// count is how many destinations drain.
func (d *drains) count() int {
	n := 0
	for _, since := range d.since {
		n += len(since)
		if _, lingers := since[wholeServer]; lingers {
			n--
		}
	}
	return n
}

// due says whether it is time to look at the draining destinations' connections.
func (d *drains) due(now time.Time) bool { return d.any() && !now.Before(d.nextLook) }

func (d *drains) servers() []kernel.ServerKey {
	keys := make([]kernel.ServerKey, 0, len(d.since))
	for key := range d.since {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, kernel.ServerKey.Compare)
	return keys
}

func (d *drains) expired(now time.Time, timeout time.Duration, key kernel.ServerKey, destination kernel.Destination) bool {
	since, draining := d.since[key][destination]
	return draining && timeout > 0 && now.Sub(since) >= timeout
}
