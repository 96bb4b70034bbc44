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
	"github.com/kube-ipvs/kube-ipvs/internal/healthport"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// Config of a Telemetry.
type Config struct {
	// Version and Commit of this program.
	Version, Commit string
	// Node is this node's name.
	Node string
	// Families that this node serves, and why it does not serve the others.
	Families  []inet.Family
	NotServed map[inet.Family]string
	// Source is where Services come from.
	Source Source
	// Traffic is what went through virtual servers.
	Traffic Traffic
	// Configuration is the one in force, in JSON; nil where nobody is to see it.
	Configuration func() ([]byte, error)
	// Refused says whether the configuration's file cannot be used as it is now; nil where there is none.
	Refused func() bool
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

// Telemetry makes metrics, health, health check ports and Events of the agent's Reports.
type Telemetry struct {
	cfg     Config
	metrics *metrics
	health  *health
	ports   *healthport.Ports
	events  *events // may be nil
	servers []*server
}

// New returns a Telemetry that serves nothing before Run. From here on the requests of all Kubernetes clients are counted.
func New(cfg Config) (*Telemetry, error) {
	t := &Telemetry{cfg: cfg, metrics: newMetrics(cfg), health: newHealth(cfg)}
	registry := prometheus.NewRegistry()
	t.metrics.register(registry)
	t.metrics.client.install()
	registerRuntime(registry)
	if cfg.API != nil {
		var err error
		if t.events, err = newEvents(cfg, t.metrics); err != nil {
			return nil, fmt.Errorf("open the client for Events: %w", err)
		}
	}
	t.ports = healthport.New(healthport.Config{
		Families: cfg.Families,
		Healthy:  func() bool { return t.health.unwell(time.Now()) == "" },
		Answered: t.metrics.answeredHealthCheck,
		Failed:   t.healthPortFailed,
		Counted:  t.metrics.countHealthPorts,
		Log:      cfg.Log,
	})
	for _, s := range []*server{
		{what: "health", flag: "--healthz-bind-address", address: cfg.HealthAddress, handler: t.health.handler(t.metrics), log: cfg.Log},
		{what: "metrics", flag: "--metrics-bind-address", address: cfg.MetricsAddress, handler: metricsHandler(registry, cfg), log: cfg.Log},
	} {
		if s.retry = bindRetry; s.address != "" {
			t.servers = append(t.servers, s)
		}
	}
	return t, nil
}

func (t *Telemetry) healthPortFailed(id model.ServiceID, why string) {
	if t.events != nil {
		t.events.observeHealthPort(id, why)
	}
}

// Observe takes the Report of a pass. It does not block.
func (t *Telemetry) Observe(r agent.Report) {
	t.metrics.observe(&r)
	t.health.observe(&r)
	t.ports.SetAddresses(r.NodePortAddresses)
	t.ports.Update(healthPorts(&r))
	if t.events != nil {
		t.events.observe(&r, t.health.failing(time.Now()))
	}
}

// healthPorts are the health check ports that a Report speaks of.
func healthPorts(r *agent.Report) map[model.ServiceID]healthport.Port {
	ports := make(map[model.ServiceID]healthport.Port, len(r.HealthPorts))
	for id, port := range r.HealthPorts {
		ports[id] = healthport.Port{Number: port.Port, Local: port.Local}
	}
	return ports
}

// Run serves until the context ends.
func (t *Telemetry) Run(ctx context.Context) {
	var running sync.WaitGroup
	for _, s := range t.servers {
		running.Go(func() { s.run(ctx) })
	}
	running.Go(func() { t.ports.Run(ctx) })
	if t.events != nil {
		t.events.started(t.cfg.Version, t.cfg.NotServed)
		running.Go(func() { t.events.run(ctx) })
	}
	running.Wait()
}
