package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
)

// Labels for the stages between a change in the API and its write to the kernel.
const (
	stageDelivery, stageWait                = "delivery", "wait"
	stageBootstrap                          = "bootstrap"
	stageCompile, stagePlan, stageApply     = "compile", "plan", "apply"
	labelStage                              = "stage"
	firstStageBucket, stageFactor, nBuckets = 0.0005, 4, 10
)

var stages = []string{stageDelivery, stageWait, stageBootstrap, stageCompile, stagePlan, stageApply}

func newStages() *prometheus.HistogramVec {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "kube_ipvs_programming_stage_duration_seconds",
		Help: "Duration of each stage between a change in the API and the kernel. Per programmed change of endpoints: delivery (API to node) and " +
			"wait (node to start of sync). Per sync: compile, plan (a full sync reads the kernel) and apply. Once on a new node: bootstrap (API server and DNS first).",
		Buckets: prometheus.ExponentialBuckets(firstStageBucket, stageFactor, nBuckets),
	}, []string{labelStage})
	for _, stage := range stages {
		h.WithLabelValues(stage)
	}
	return h
}

// observeStages counts negative durations as zero. Clock skew can cause them.
func (m *metrics) observeStages(r *agent.Report) {
	took := func(stage string, d time.Duration) { m.stages.WithLabelValues(stage).Observe(max(d, 0).Seconds()) }
	if r.Stages.Bootstrap > 0 {
		took(stageBootstrap, r.Stages.Bootstrap)
	}
	took(stageCompile, r.Stages.Compile)
	took(stagePlan, r.Stages.Plan)
	took(stageApply, r.Stages.Apply)
	for _, t := range r.Programmed {
		took(stageDelivery, t.Received.Sub(t.At))
		took(stageWait, r.Started.Sub(t.Received))
	}
}
