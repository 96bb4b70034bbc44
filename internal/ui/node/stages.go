package node

import (
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// Stage is the latency of one stage of the latest changes, in seconds.
type Stage struct {
	Name   string  `json:"name"`
	Count  int     `json:"count"`
	Median float64 `json:"median"`
	P99    float64 `json:"p99"`
	Max    float64 `json:"max"`
}

// stages returns the latency of each stage, for the syncs that changes in the cluster caused.
func stages(entries []*view.PastSync) []Stage {
	parts := []struct {
		name string
		of   func(*view.PastSync) float64
	}{
		{"waited", func(e *view.PastSync) float64 { return e.Stages.Waited }},
		{"gather", func(e *view.PastSync) float64 { return e.Stages.Gather }},
		{"compile", func(e *view.PastSync) float64 { return e.Stages.Compile }},
		{"plan", func(e *view.PastSync) float64 { return e.Stages.Plan }},
		{"apply", func(e *view.PastSync) float64 { return e.Stages.Apply }},
		{"total", func(e *view.PastSync) float64 { return e.Stages.Waited + e.Seconds }},
	}
	out := []Stage{}
	for _, part := range parts {
		var all []float64
		for _, e := range entries {
			if e.Kind == view.SyncIncremental {
				all = append(all, part.of(e))
			}
		}
		if len(all) == 0 {
			return out
		}
		slices.Sort(all)
		last := len(all) - 1
		out = append(out, Stage{part.name, len(all), all[last/2], all[last*99/100], all[last]})
	}
	return out
}
