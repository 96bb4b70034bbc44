package telemetry

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Source says how the source of Services is doing. Its functions may be called by several goroutines at once and must not
// block; each of them may be nil, and what it would say is then not told.
type Source struct {
	// Synced says whether everything that exists has been heard of once.
	Synced func() bool
	// LastHeard is when something was last heard of each kind of object.
	LastHeard func() map[string]time.Time
	// Changes counts the changes that were heard.
	Changes func() Changes
}

// Changes counts changes of Services and of EndpointSlices: all since the start, and those that no pass has taken up yet.
type Changes struct {
	Services, ServicesPending   int
	Endpoints, EndpointsPending int
}

// register adds the series that are asked for at each scrape.
func (s Source) register(r prometheus.Registerer) {
	if s.LastHeard != nil {
		r.MustRegister(lastHeard(s.LastHeard))
	}
	if s.Changes == nil {
		return
	}
	total := func(name, help string, value func(Changes) int) {
		r.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help},
			func() float64 { return float64(value(s.Changes())) }))
	}
	pending := func(name, help string, value func(Changes) int) {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help},
			func() float64 { return float64(value(s.Changes())) }))
	}
	const prefix = "kubeproxy_sync_proxy_rules_"
	total(prefix+"service_changes_total", "Changes of Services that were heard.", func(c Changes) int { return c.Services })
	total(prefix+"endpoint_changes_total", "Changes of EndpointSlices that were heard.", func(c Changes) int { return c.Endpoints })
	pending(prefix+"service_changes_pending", "Changes of Services that no pass has taken up yet.",
		func(c Changes) int { return c.ServicesPending })
	pending(prefix+"endpoint_changes_pending", "Changes of EndpointSlices that no pass has taken up yet.",
		func(c Changes) int { return c.EndpointsPending })
}

// lastHeard tells the times as series.
type lastHeard func() map[string]time.Time

var heardDesc = prometheus.NewDesc("kube_ipvs_source_last_heard_timestamp_seconds",
	"When the API server last said something of a kind of object, if only that nothing has changed: about once a minute.",
	[]string{labelKind}, nil)

func (f lastHeard) Describe(out chan<- *prometheus.Desc) { out <- heardDesc }

func (f lastHeard) Collect(out chan<- prometheus.Metric) {
	for kind, at := range f() {
		out <- prometheus.MustNewConstMetric(heardDesc, prometheus.GaugeValue, float64(at.UnixNano())/1e9, strings.ToLower(kind))
	}
}
