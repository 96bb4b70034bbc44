package agent

import (
	"cmp"
	"slices"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/agent/contest"
	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

type history struct {
	last, lastFull *view.Sync
	err            string
	drift          int
	lastDrift      time.Time
	drifts         map[driftKey]*view.Drift
	unreadable     map[model.ObjectRef][]model.Problem
	leftovers      []string
}

func newHistory() *history {
	return &history{unreadable: map[model.ObjectRef][]model.Problem{}, drifts: map[driftKey]*view.Drift{}}
}

type driftKey struct{ part, kind string }

func (h *history) observe(r *Report) {
	sync := &view.Sync{Started: r.Started, Seconds: r.Duration.Seconds()}
	for _, result := range r.Results {
		switch {
		case result.Err == nil:
			sync.Changes++
		case !result.Unfinished():
			sync.Failed++
		}
	}
	h.last = sync
	switch {
	case r.Err != nil:
		h.err = r.Err.Error()
	case r.Waiting != nil:
		h.err = r.Waiting.Error()
	case r.Complete(): // an incremental sync does not retry earlier failures
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
	for _, f := range r.Drifted {
		h.observeDrift(r.Started, f)
	}
	for object, problems := range r.Unreadable {
		if h.unreadable[object] = problems; len(problems) == 0 {
			delete(h.unreadable, object)
		}
	}
}

func (h *history) observeDrift(at time.Time, f contest.Finding) {
	key := driftKey{f.Part, f.Kind}
	d := h.drifts[key]
	if d == nil {
		d = &view.Drift{Part: f.Part, Kind: f.Kind, First: at}
		h.drifts[key] = d
	}
	if !d.Last.Equal(at) {
		d.Audits, d.Last, d.What = d.Audits+1, at, nil
	}
	if d.Count += f.Count; len(d.What) < maxFound {
		d.What = append(d.What, f.String())
	}
}

// viewDrifts copies the drifts, because the loop changes the originals.
func (h *history) viewDrifts() []view.Drift {
	drifts := make([]view.Drift, 0, len(h.drifts))
	for _, d := range h.drifts {
		shown := *d
		shown.What = slices.Clone(d.What)
		drifts = append(drifts, shown)
	}
	slices.SortFunc(drifts, func(a, b view.Drift) int { return cmp.Or(cmp.Compare(a.Part, b.Part), cmp.Compare(a.Kind, b.Kind)) })
	return drifts
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
