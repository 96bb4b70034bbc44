package telemetry

import (
	"context"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Waiting is the telemetry of an agent that waits for the node lock and has no node, source or loop yet. It reports the agent as
// alive but not ready, with the reason.
type Waiting struct {
	health  *health
	servers []*server
}

func newWaitingGauge() prometheus.Gauge {
	return gauge("kube_ipvs_waiting_for_node_lock",
		"1 while another kube-ipvs process holds the node lock and this one waits for it without serving Services, else 0.")
}

// NewWaiting returns a Waiting that serves nothing until Run is called.
func NewWaiting(cfg Config) *Waiting {
	metrics, health := newMetrics(cfg), newHealth(cfg)
	metrics.waiting.Set(1)
	registry := prometheus.NewRegistry()
	metrics.register(registry)
	registerRuntime(registry)
	return &Waiting{health, newServers(cfg, health.handler(metrics), metricsHandler(registry, cfg, metrics.mode))}
}

// For sets the reason for waiting.
func (w *Waiting) For(reason error) {
	w.health.mu.Lock()
	defer w.health.mu.Unlock()
	w.health.waiting = reason
}

// Run serves until the context ends.
func (w *Waiting) Run(ctx context.Context) {
	var running sync.WaitGroup
	for _, s := range w.servers {
		running.Go(func() { s.run(ctx) })
	}
	running.Wait()
}
