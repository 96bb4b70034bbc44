package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
)

// The stages on the way of a change from the API to the kernel, as labels.
const (
	stageDelivery, stageWait                = "delivery", "wait"
	stageLead                               = "lead"
	stageCompile, stagePlan, stageApply     = "compile", "plan", "apply"
	labelStage                              = "stage"
	firstStageBucket, stageFactor, nBuckets = 0.0005, 4, 10
)

var stages = []string{stageDelivery, stageWait, stageLead, stageCompile, stagePlan, stageApply}

func newStages() *prometheus.HistogramVec {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "kube_ipvs_programming_stage_duration_seconds",
		Help: "Where the time goes from a change in the API to the kernel. For each change of endpoints that the kernel has: delivery, until this " +
			"node heard of it; wait, until the pass began that brought it to the kernel. For each pass: compile, plan (reads the kernel if the pass is full), apply. " +
			"Once, on a new node: lead, to serve the API server and the cluster's own Services before all others.",
		Buckets: prometheus.ExponentialBuckets(firstStageBucket, stageFactor, nBuckets),
	}, []string{labelStage})
	for _, stage := range stages {
		h.WithLabelValues(stage)
	}
	return h
}

// observeStages takes clocks that disagree for no time at all.
func (m *metrics) observeStages(r *agent.Report) {
	took := func(stage string, d time.Duration) { m.stages.WithLabelValues(stage).Observe(max(d, 0).Seconds()) }
	if r.Stages.Lead > 0 {
		took(stageLead, r.Stages.Lead)
	}
	took(stageCompile, r.Stages.Compile)
	took(stagePlan, r.Stages.Plan)
	took(stageApply, r.Stages.Apply)
	for _, t := range r.Programmed {
		took(stageDelivery, t.Heard.Sub(t.At))
		took(stageWait, r.Started.Sub(t.Heard))
	}
}
