package agent

import (
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// history is what views show of past reports.
type history struct {
	last, lastFull *view.Sync
	err            string
	drift          int
	lastDrift      time.Time
	unreadable     map[model.ObjectRef][]model.Problem
	leftovers      []string
}

func newHistory() *history { return &history{unreadable: map[model.ObjectRef][]model.Problem{}} }

func (h *history) observe(r *Report) {
	sync := &view.Sync{Started: r.Started, Seconds: r.Duration.Seconds()}
	for _, result := range r.Results {
		if result.Err == nil {
			sync.Changes++
		} else {
			sync.Failed++
		}
	}
	h.last = sync
	switch {
	case r.Err != nil:
		h.err = r.Err.Error()
	case r.Full: // an incremental sync does not check what had failed
		h.err = ""
	}
	if r.Full {
		h.lastFull = sync
		h.leftovers = leftovers(r.Leftovers)
	}
	if r.Drift > 0 {
		h.drift += r.Drift
		h.lastDrift = r.Started
	}
	for object, problems := range r.Unreadable {
		if h.unreadable[object] = problems; len(problems) == 0 {
			delete(h.unreadable, object)
		}
	}
}

func leftovers(l diff.Leftovers) []string {
	all := []string{}
	for _, key := range l.Servers {
		all = append(all, "virtual server "+key.String())
	}
	for _, addr := range l.Addresses {
		all = append(all, "address "+addr.String())
	}
	return all
}
