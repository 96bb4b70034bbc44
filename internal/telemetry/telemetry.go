package telemetry

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"k8s.io/client-go/rest"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
)

// Config of a Telemetry.
type Config struct {
	// Version and Commit of this program.
	Version, Commit string
	// Node is this node's name.
	Node string
	// Families that this node serves.
	Families []inet.Family
	// SyncPeriod is how often the agent makes a whole pass though nothing changes.
	SyncPeriod time.Duration
	// HealthAddress and MetricsAddress are where to listen; an empty one is not served.
	HealthAddress, MetricsAddress string
	// Profiling serves /debug/pprof beside the metrics.
	Profiling bool
	// API is where Events are sent. It is nil where Services do not come from an API server.
	API *rest.Config
	Log *zap.Logger
}

// Telemetry makes metrics, health and Events of the agent's Reports.
type Telemetry struct {
	metrics *metrics
	health  *health
	events  *events // may be nil
	servers []*server
}

// New returns a Telemetry that serves nothing before Run.
func New(cfg Config) (*Telemetry, error) {
	t := &Telemetry{metrics: newMetrics(cfg)}
	t.health = newHealth(cfg, t.metrics)
	registry := prometheus.NewRegistry()
	t.metrics.register(registry)
	registerRuntime(registry)
	if cfg.API != nil {
		var err error
		if t.events, err = newEvents(cfg, t.metrics); err != nil {
			return nil, fmt.Errorf("open the client for Events: %w", err)
		}
	}
	for _, s := range []*server{
		{what: "health", flag: "--healthz-bind-address", address: cfg.HealthAddress, handler: t.health.handler(), log: cfg.Log},
		{what: "metrics", flag: "--metrics-bind-address", address: cfg.MetricsAddress, handler: metricsHandler(registry, cfg.Profiling), log: cfg.Log},
	} {
		if s.retry = bindRetry; s.address != "" {
			t.servers = append(t.servers, s)
		}
	}
	return t, nil
}

// Observe takes the Report of a pass. It does not block.
func (t *Telemetry) Observe(r agent.Report) {
	t.metrics.observe(&r)
	t.health.observe(&r)
	if t.events != nil {
		t.events.observe(&r)
	}
}

// SetNodeEligible says whether load balancers may send this node traffic: not if the node is about to be removed. It is
// eligible until somebody says otherwise.
func (t *Telemetry) SetNodeEligible(eligible bool) { t.health.setNodeEligible(eligible) }

// Run serves until the context ends.
func (t *Telemetry) Run(ctx context.Context) {
	var running sync.WaitGroup
	for _, s := range t.servers {
		running.Go(func() { s.run(ctx) })
	}
	if t.events != nil {
		running.Go(func() { t.events.run(ctx) })
	}
	running.Wait()
}
