package telemetry

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"k8s.io/client-go/rest"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/forward"
	"github.com/kube-ipvs/kube-ipvs/internal/healthport"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// Config configures a Telemetry.
type Config struct {
	// Version and Commit identify this build.
	Version, Commit string
	Node            string
	// Families are the families that this node serves. NotServed contains the other families, with the reason why
	// each is not served.
	Families  []inet.Family
	NotServed map[inet.Family]error
	// DataPlane is ipvs or nftables until Moved is called. Rules is iptables or nftables.
	DataPlane, Rules string
	Source           Source
	Traffic          Traffic
	// Tables returns the sizes of the kernel's connection tables; nil disables their metrics.
	Tables func() Tables
	// Loopback returns the counts of loopback node port clients; nil disables their metrics.
	Loopback func() forward.Counts
	// Configuration returns the current configuration as JSON, for /configz; nil disables the path.
	Configuration func() ([]byte, error)
	// Refused reports whether the configuration file is currently invalid; nil without a file.
	Refused func() bool
	// Serving is true if the kernel serves the state of an earlier agent.
	Serving bool
	// Period is the period of full syncs until the first Report.
	Period time.Duration
	// HealthAddress and MetricsAddress are the addresses to listen on; empty disables the server.
	HealthAddress, MetricsAddress string
	Profiling                     bool
	// API is the API server that receives the Events; nil if Services do not come from an API server.
	API *rest.Config
	Log *zap.Logger
}

// Telemetry turns the agent's Reports into metrics, health, health check ports and Events.
type Telemetry struct {
	cfg      Config
	metrics  *metrics
	health   *health
	ports    *healthport.Ports
	events   *events // nil without an API server
	servers  []*server
	problems *nodeProblems
}

// New returns a Telemetry that serves nothing until Run is called. New also starts counting the requests of all Kubernetes
// clients.
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
		Families:  cfg.Families,
		Healthy:   func() bool { return t.health.healthy(time.Now()) == nil },
		Responded: t.metrics.countHealthCheck,
		Failed:    t.healthPortFailed,
		Counted:   t.metrics.countHealthPorts,
		Log:       cfg.Log,
	})
	t.problems = newNodeProblems(cfg.Node, t.events, t.metrics)
	t.servers = newServers(cfg, t.health.handler(t.metrics), metricsHandler(registry, cfg, t.metrics.mode))
	for _, s := range t.servers {
		s.problems = t.problems
	}
	return t, nil
}

func newServers(cfg Config, health, metrics http.Handler) []*server {
	var servers []*server
	for _, s := range []*server{
		{what: "health", flag: "--healthz-bind-address", address: cfg.HealthAddress, handler: health, log: cfg.Log},
		{what: "metrics", flag: "--metrics-bind-address", address: cfg.MetricsAddress, handler: metrics, log: cfg.Log},
	} {
		if s.retry = bindRetry; s.address != "" {
			servers = append(servers, s)
		}
	}
	return servers
}

func (t *Telemetry) healthPortFailed(id model.ServiceID, err error) {
	if t.events != nil {
		t.events.observeHealthPort(id, err)
	}
}

// Observe receives the Report of a sync. It does not block.
func (t *Telemetry) Observe(r agent.Report) {
	t.metrics.observe(&r)
	t.health.observe(&r)
	t.ports.SetAddresses(r.NodePortAddresses)
	t.ports.Update(healthPorts(&r))
	if t.events != nil {
		t.events.observe(&r, t.health.failing(time.Now()))
	}
}

// Checked receives the time of a successful quick check. It does not block.
func (t *Telemetry) Checked(at time.Time) { t.health.checked(at) }

func healthPorts(r *agent.Report) map[model.ServiceID]healthport.Port {
	ports := make(map[model.ServiceID]healthport.Port, len(r.Served))
	for id, served := range r.Served {
		ports[id] = healthport.Port{Number: served.Health.Port, Local: served.Health.Local}
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
