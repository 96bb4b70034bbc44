package telemetry

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Source is the state of the source of Services. Its functions must be safe for concurrent use and must not block. If a
// function is nil, its metrics are absent.
type Source struct {
	Synced func() bool
	// LastContact returns the time of the last message for each kind of object.
	LastContact func() map[string]time.Time
	// Snapshot returns the time at which the snapshot was last known to be up to date (zero for no snapshot), and whether
	// the node serves it.
	Snapshot func() (at time.Time, served bool)
	Changes  func() Changes
}

// Changes counts changes to Services and EndpointSlices: all changes since the start, and the pending ones.
type Changes struct {
	Services, ServicesPending   int
	Endpoints, EndpointsPending int
}

// register adds series whose values are computed on each scrape.
func (s Source) register(r prometheus.Registerer) {
	if s.LastContact != nil {
		r.MustRegister(lastContact(s.LastContact))
	}
	if s.Snapshot != nil {
		r.MustRegister(snapshot(s.Snapshot))
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
	total(prefix+"service_changes_total", "Service changes received from the source since the agent started.", func(c Changes) int { return c.Services })
	total(prefix+"endpoint_changes_total", "EndpointSlice changes received from the source since the agent started.", func(c Changes) int { return c.Endpoints })
	pending(prefix+"service_changes_pending", "Service changes that wait for the next sync.",
		func(c Changes) int { return c.ServicesPending })
	pending(prefix+"endpoint_changes_pending", "EndpointSlice changes that wait for the next sync.",
		func(c Changes) int { return c.EndpointsPending })
}

type lastContact func() map[string]time.Time

var lastContactDesc = prometheus.NewDesc("kube_ipvs_source_last_heard_timestamp_seconds",
	"Unix time of the last message from the API server for a kind of object, including bookmarks (about one a minute).",
	[]string{labelKind}, nil)

func (f lastContact) Describe(out chan<- *prometheus.Desc) { out <- lastContactDesc }

func (f lastContact) Collect(out chan<- prometheus.Metric) {
	for kind, at := range f() {
		out <- prometheus.MustNewConstMetric(lastContactDesc, prometheus.GaugeValue, float64(at.UnixNano())/1e9, strings.ToLower(kind))
	}
}

type snapshot func() (at time.Time, served bool)

var (
	snapshotAtDesc = prometheus.NewDesc("kube_ipvs_snapshot_timestamp_seconds",
		"Unix time at which the snapshot file was last known to be up to date; absent if there is no usable file.", nil, nil)
	snapshotServedDesc = prometheus.NewDesc("kube_ipvs_snapshot_served",
		"1 while the node serves the snapshot because the API server was unavailable when the agent started, 0 otherwise.", nil, nil)
)

func (f snapshot) Describe(out chan<- *prometheus.Desc) {
	out <- snapshotAtDesc
	out <- snapshotServedDesc
}

func (f snapshot) Collect(out chan<- prometheus.Metric) {
	at, served := f()
	if !at.IsZero() {
		out <- prometheus.MustNewConstMetric(snapshotAtDesc, prometheus.GaugeValue, float64(at.UnixNano())/1e9)
	}
	value := 0.0
	if served {
		value = 1
	}
	out <- prometheus.MustNewConstMetric(snapshotServedDesc, prometheus.GaugeValue, value)
}
