package telemetry

import (
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/forward"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// metrics contains all series that the agent defines. They exist from the start, so that rate() includes their first
// increment.
//
// Series with the prefix kubeproxy_ have kube-proxy's names and meaning, for existing dashboards and alerts.
type metrics struct {
	syncDuration    *prometheus.HistogramVec
	syncLast        *prometheus.GaugeVec
	syncQueued      *prometheus.GaugeVec
	restoreFailures *prometheus.CounterVec
	programming     *prometheus.HistogramVec
	noLocal         *prometheus.GaugeVec
	healthz, livez  *prometheus.CounterVec

	services     prometheus.Gauge
	stopped      *prometheus.GaugeVec
	servers      prometheus.Gauge
	endpoints    *endpoints
	traffic      *traffic // nil if the kernel's counters are not read
	stages       *prometheus.HistogramVec
	refused      prometheus.GaugeFunc
	compiled     prometheus.Counter
	problems     *prometheus.GaugeVec
	operations   *prometheus.CounterVec
	syncs        *prometheus.CounterVec
	lastFull     prometheus.Gauge
	fullInterval prometheus.Gauge
	drift        *prometheus.CounterVec
	foreign      prometheus.Gauge
	leftovers    *prometheus.GaugeVec
	retryPending prometheus.Gauge
	retryWait    prometheus.Gauge
	stuckSince   *prometheus.GaugeVec
	events       *prometheus.CounterVec
	build        *prometheus.GaugeVec
	waiting      prometheus.Gauge
	endedFlows   prometheus.Counter
	healthPorts  *prometheus.GaugeVec
	healthChecks *prometheus.CounterVec
	client       *clientMetrics
	source       Source
	loopback     func() forward.Counts
	tables       tables // nil if they are not read
	// mode is nil while the agent waits for the node lock.
	mode *mode

	families []inet.Family
	// countedIn contains the noLocal series in which each Service is counted. Only the loop uses it.
	countedIn map[model.ServiceID][]prometheus.Gauge
}

const (
	resultOK, resultFailed                       = "ok", "failed"
	resultSkipped, resultRefused                 = "skipped", "refused"
	resultPosted, resultDuplicate, resultDropped = "posted", "duplicate", "dropped"
	syncFull, syncIncremental                    = "full", "incremental"
	leftoverServer, leftoverAddress              = "server", "address"
	policyInternal, policyExternal               = "internal", "external"
	labelPolicy                                  = "traffic_policy"
	labelPart                                    = "part"
	portListening, portFailing                   = "listening", "failing"
	stoppedInUse, stoppedDrained                 = "in_use", "drained"
	labelFamily, labelKind, labelVerb, labelRe   = "ip_family", "kind", "verb", "result"
)

var (
	objectKinds  = []model.Kind{model.KindService, model.KindEndpointSlice, model.KindNode, model.KindFile}
	eventResults = []string{resultPosted, resultDuplicate, resultDropped, resultFailed}
)

var kindNames = map[kernel.Kind]string{
	kernel.KindSysctl: "sysctl", kernel.KindDevice: "device", kernel.KindAddress: "address", kernel.KindSet: "set",
	kernel.KindMember: "member", kernel.KindRules: "rules", kernel.KindServer: "server", kernel.KindDestination: "destination",
	kernel.KindTimeouts: "timeouts",
}

var verbNames = map[kernel.Verb]string{
	kernel.Create: "create", kernel.Update: "update", kernel.Delete: "delete", kernel.Ensure: "ensure",
}

var verbsOf = map[kernel.Kind][]kernel.Verb{
	kernel.KindSysctl:      {kernel.Ensure},
	kernel.KindDevice:      {kernel.Create, kernel.Delete},
	kernel.KindAddress:     {kernel.Create, kernel.Delete},
	kernel.KindSet:         {kernel.Create, kernel.Update, kernel.Delete},
	kernel.KindMember:      {kernel.Create, kernel.Delete},
	kernel.KindRules:       {kernel.Ensure, kernel.Delete},
	kernel.KindServer:      {kernel.Create, kernel.Update, kernel.Delete},
	kernel.KindDestination: {kernel.Create, kernel.Update, kernel.Delete},
	kernel.KindTimeouts:    {kernel.Ensure},
}

func gauge(name, help string) prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
}

func gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
}

func counter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

func counters(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

func newMetrics(cfg Config) *metrics {
	m := &metrics{
		syncDuration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "kubeproxy_sync_proxy_rules_duration_seconds",
			Help:    "Duration of a sync. One sync covers all families; it is counted once for each family that this node serves.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
		}, []string{labelFamily}),
		syncLast: gauges("kubeproxy_sync_proxy_rules_last_timestamp_seconds",
			"Unix time at which the last successful sync ended.", labelFamily),
		syncQueued: gauges("kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
			"Unix time at which the last sync with changed Services started.", labelFamily),
		restoreFailures: counters("kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
			"Failed attempts to write or remove the agent's iptables chains since it started.", labelFamily),
		programming: newProgramming(),
		noLocal: gauges("kubeproxy_sync_proxy_rules_no_local_endpoints_total",
			"Services with traffic policy Local that have endpoints, but none on this node.", labelPolicy, labelFamily),
		healthz: counters("kubeproxy_proxy_healthz_total", "Responses of /healthz since the agent started, by HTTP status.", "code"),
		livez:   counters("kubeproxy_proxy_livez_total", "Responses of /livez since the agent started, by HTTP status.", "code"),

		services: gauge("kube_ipvs_services", "Services that this node should serve, including Services that it cannot serve because of a problem."),
		stopped: gauges("kube_ipvs_stopped_endpoints",
			"Endpoints that an annotation sets to weight 0, counted per virtual server at the last full sync: in_use have connections through this node, "+
				"drained have none and are safe to remove as far as this node knows.", "state"),
		servers:   gauge("kube_ipvs_virtual_servers", "Virtual servers that this node should have for its Services."),
		endpoints: newEndpoints(),
		stages:    newStages(),
		compiled: counter("kube_ipvs_services_compiled_total",
			"Services compiled since the agent started, because the Service, its endpoints or another Service with the same address changed."),
		problems: gauges("kube_ipvs_problems",
			"Current problems with cluster objects or this node that only their owners can fix, by kind of object.", labelKind),
		operations: counters("kube_ipvs_operations_total",
			"Writes of kernel objects since the agent started. Result refused: the kernel rejected the object, and the Service has a Problem; "+
				"skipped: a write that it depends on failed.", labelKind, labelVerb, labelRe),
		syncs: counters("kube_ipvs_syncs_total",
			"Syncs since the agent started: full ones compare everything with the kernel, incremental ones only what changed.", labelKind, labelRe),
		lastFull: gauge("kube_ipvs_last_full_sync_timestamp_seconds",
			"Unix time at which the last successful full sync ended and left the kernel in the wanted state; 0 before the first."),
		fullInterval: gauge("kube_ipvs_full_sync_interval_seconds",
			"Time from the start of the last full sync to the next regular one: --ipvs-sync-period, or longer if full syncs are slow; 0 before the first."),
		drift: counters("kube_ipvs_drift_repairs_total",
			"Differences in the kernel that other programs caused and the agent has repaired since it started, by part of the kernel and kind.", labelPart, labelKind),
		foreign: gauge("kube_ipvs_foreign_servers", "Virtual servers of other programs that use the address and port of a Service; the Service is not served there."),
		leftovers: gauges("kube_ipvs_leftovers",
			"Objects on kube-ipvs0 with neither a Service nor an owner record, at the last full sync; the agent never deletes them.", labelKind),
		retryPending: gauge("kube_ipvs_retry_pending", "1 from a failed sync until a full sync succeeds, else 0."),
		retryWait:    gauge("kube_ipvs_retry_wait_seconds", "Backoff before the next retry, set at the last failure; 0 if no retry is pending."),
		stuckSince:   newStuck(),
		events: counters("kube_ipvs_events_total",
			"Kubernetes Events since the agent started: posted, duplicate (another node posted it), dropped (queue full, or no such Service) or failed.", labelRe),
		build:   gauges("kube_ipvs_build_info", "Always 1; the labels contain the version.", "version", "commit", "go_version"),
		waiting: newWaitingGauge(),
		endedFlows: counter("kube_ipvs_ended_flows_total",
			"Tracked connections that the agent has ended since it started, because they bypassed their Service or lacked masquerading: UDP and SCTP flows, "+
				"and unanswered TCP connections."),
		healthPorts: gauges("kube_ipvs_health_check_ports",
			"Services with a healthCheckNodePort: listening on all addresses, or failing on at least one.", "state"),
		healthChecks: counters("kube_ipvs_health_checks_total", "Responses on the healthCheckNodePorts of Services since the agent started, by HTTP status.", "code"),
		refused:      newRefused(cfg.Refused),
		client:       newClientMetrics(),
		source:       cfg.Source,
		loopback:     cfg.Loopback, tables: cfg.Tables, mode: newMode(cfg.DataPlane, cfg.Rules),
		families:  cfg.Families,
		countedIn: map[model.ServiceID][]prometheus.Gauge{},
	}
	if cfg.Traffic.Read != nil {
		m.traffic = newTraffic(cfg.Traffic, cfg.Log)
	}
	m.initialize(cfg)
	return m
}

func newProgramming() *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "kubeproxy_network_programming_duration_seconds",
		Help:    "Time from a change to a Service's pods (the EndpointSlice's trigger time) to the end of the sync that wrote it to the kernel.",
		Buckets: programmingBuckets(),
	}, []string{labelFamily})
}

func newRefused(refused func() bool) prometheus.GaugeFunc {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kube_ipvs_configuration_refused",
		Help: "1 while the configuration file is invalid and the previous settings remain in effect, else 0.",
	}, func() float64 {
		if refused != nil && refused() {
			return 1
		}
		return 0
	})
}

func (m *metrics) initialize(cfg Config) {
	for _, family := range m.families {
		f := family.String()
		m.syncDuration.WithLabelValues(f)
		m.syncLast.WithLabelValues(f)
		m.syncQueued.WithLabelValues(f)
		m.restoreFailures.WithLabelValues(f)
		m.programming.WithLabelValues(f)
		m.noLocal.WithLabelValues(policyInternal, f)
		m.noLocal.WithLabelValues(policyExternal, f)
	}
	for _, code := range []string{"200", "503"} {
		m.healthz.WithLabelValues(code)
		m.livez.WithLabelValues(code)
		m.healthChecks.WithLabelValues(code)
	}
	m.countHealthPorts(0, 0)
	for _, kind := range objectKinds {
		m.problems.WithLabelValues(kindLabel(kind))
	}
	for kind, verbs := range verbsOf {
		for _, verb := range verbs {
			for _, result := range []string{resultOK, resultFailed, resultRefused, resultSkipped} {
				m.operations.WithLabelValues(kindNames[kind], verbNames[verb], result)
			}
		}
	}
	for _, kind := range []string{syncFull, syncIncremental} {
		m.syncs.WithLabelValues(kind, resultOK)
		m.syncs.WithLabelValues(kind, resultFailed)
	}
	for part, kinds := range agent.DriftKinds {
		for _, kind := range kinds {
			m.drift.WithLabelValues(part, kind)
		}
	}
	m.stopped.WithLabelValues(stoppedInUse)
	m.stopped.WithLabelValues(stoppedDrained)
	m.leftovers.WithLabelValues(leftoverServer)
	m.leftovers.WithLabelValues(leftoverAddress)
	m.observeStuck(&agent.Report{Full: true})
	for _, result := range eventResults {
		m.events.WithLabelValues(result)
	}
	m.build.WithLabelValues(cfg.Version, cfg.Commit, runtime.Version()).Set(1)
}

func (m *metrics) register(r prometheus.Registerer) {
	r.MustRegister(m.stopped, m.syncDuration, m.syncLast, m.syncQueued, m.restoreFailures, m.programming, m.noLocal, m.healthz, m.livez,
		m.services, m.servers, m.endpoints.count, m.stages, m.refused, m.compiled, m.problems, m.operations, m.syncs, m.lastFull, m.fullInterval, m.drift, m.foreign, m.leftovers,
		m.retryPending, m.retryWait, m.stuckSince, m.events, m.build, m.waiting, m.endedFlows, m.healthPorts, m.healthChecks)
	if m.traffic != nil {
		r.MustRegister(m.traffic)
	}
	m.client.register(r)
	m.source.register(r)
	registerLoopback(r, m.loopback)
	m.mode.register(r)
	if m.tables != nil {
		r.MustRegister(m.tables)
	}
}

// registerRuntime adds the series that every Go program exports.
func registerRuntime(r prometheus.Registerer) {
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
}

func (m *metrics) observe(r *agent.Report) {
	ended := float64(r.Started.Add(r.Duration).UnixNano()) / 1e9
	for _, family := range m.families {
		f := family.String()
		m.syncDuration.WithLabelValues(f).Observe(r.Duration.Seconds())
		if r.Err == nil && r.Waiting == nil {
			m.syncLast.WithLabelValues(f).Set(ended)
		}
		if len(r.Compiled) > 0 {
			m.syncQueued.WithLabelValues(f).Set(float64(r.Started.UnixNano()) / 1e9)
		}
	}
	m.services.Set(float64(r.Services))
	m.servers.Set(float64(r.VirtualServers))
	m.endpoints.observe(r)
	m.stopped.WithLabelValues(stoppedInUse).Set(float64(r.Stopped - r.Drained))
	m.stopped.WithLabelValues(stoppedDrained).Set(float64(r.Drained))
	if m.traffic != nil {
		m.traffic.observe(r)
	}
	m.observeStages(r)
	m.compiled.Add(float64(len(r.Compiled)))
	for _, f := range r.Drifted {
		m.drift.WithLabelValues(f.Part, f.Kind).Add(float64(f.Count))
	}
	m.foreign.Set(float64(len(r.Foreign)))
	m.endedFlows.Add(float64(r.EndedFlows))
	m.observeOutcome(r, ended)
	m.observeOperations(r.Results)
	m.observeProblems(r)
	m.observeNoLocal(r)
	for _, t := range r.Programmed {
		m.programming.WithLabelValues(t.Family.String()).Observe(r.Started.Add(r.Duration).Sub(t.At).Seconds())
	}
}

// programmingBuckets are kube-proxy's buckets: 0.25 s and 0.5 s, every second up to a minute, then coarser steps up to five
// minutes.
func programmingBuckets() []float64 {
	return slices.Concat([]float64{0.25, 0.5}, prometheus.LinearBuckets(1, 1, 59), prometheus.LinearBuckets(60, 5, 12),
		prometheus.LinearBuckets(120, 30, 7))
}

// observeNoLocal adjusts the counts incrementally: a Report contains only the compiled Services.
func (m *metrics) observeNoLocal(r *agent.Report) {
	for id, served := range r.Served {
		for _, series := range m.countedIn[id] {
			series.Dec()
		}
		delete(m.countedIn, id)
		for _, policy := range served.NoLocal {
			label := policyInternal
			if policy.External {
				label = policyExternal
			}
			series := m.noLocal.WithLabelValues(label, policy.Family.String())
			series.Inc()
			m.countedIn[id] = append(m.countedIn[id], series)
		}
	}
}

func (m *metrics) observeOutcome(r *agent.Report, ended float64) {
	kind, result := syncIncremental, resultOK
	if r.Full {
		kind = syncFull
	}
	if r.Err != nil {
		result = resultFailed
	}
	m.syncs.WithLabelValues(kind, result).Inc()
	m.observeStuck(r)
	switch {
	case r.Err != nil:
		m.retryPending.Set(1)
		m.retryWait.Set(max(0, r.RetryAfter.Seconds()))
	case r.Complete():
		m.retryPending.Set(0)
		m.retryWait.Set(0)
		m.lastFull.Set(ended)
		m.fullInterval.Set(r.NextAudit.Seconds())
		m.leftovers.WithLabelValues(leftoverServer).Set(float64(len(r.Leftovers.Servers)))
		m.leftovers.WithLabelValues(leftoverAddress).Set(float64(len(r.Leftovers.Addresses)))
	}
}

func newStuck() *prometheus.GaugeVec {
	return gauges("kube_ipvs_stuck_since_timestamp_seconds",
		"Unix time at which a part of the kernel interface stopped responding or started failing; 0 if it works.", labelPart)
}

func (m *metrics) observeStuck(r *agent.Report) {
	since := map[string]float64{}
	for _, stuck := range r.Stuck {
		since[stuck.Part] = float64(stuck.Since.Unix())
	}
	for _, f := range inet.Families {
		part := kernel.Programs(f)
		m.stuckSince.WithLabelValues(part).Set(since[part])
	}
}

func (m *metrics) observeOperations(results []agent.Result) {
	type outcome struct {
		kind   kernel.Kind
		verb   kernel.Verb
		result string
	}
	counts := map[outcome]int{}
	for _, r := range results {
		o := outcome{r.Op.KindOf(), r.Op.Verb, resultOK}
		switch {
		case r.Unfinished():
			continue
		case r.Skipped:
			o.result = resultSkipped
		case r.Refused():
			o.result = resultRefused
		case r.Err != nil:
			o.result = resultFailed
			if rules, ok := r.Op.Object.(kernel.Ruleset); ok {
				m.restoreFailures.WithLabelValues(rules.Family.String()).Inc()
			}
		}
		counts[o]++
	}
	for o, n := range counts {
		m.operations.WithLabelValues(kindNames[o.kind], verbNames[o.verb], o.result).Add(float64(n))
	}
}

func (m *metrics) observeProblems(r *agent.Report) {
	for _, change := range r.ProblemChanges {
		m.problems.WithLabelValues(kindLabel(change.Object.Kind)).Add(float64(change.More))
	}
}

func kindLabel(kind model.Kind) string { return strings.ToLower(string(kind)) }

func (m *metrics) countHealthPorts(listening, failing int) {
	m.healthPorts.WithLabelValues(portListening).Set(float64(listening))
	m.healthPorts.WithLabelValues(portFailing).Set(float64(failing))
}

func (m *metrics) countHealthCheck(status int) {
	m.healthChecks.WithLabelValues(statusCode(status)).Inc()
}

func statusCode(code int) string { return strconv.Itoa(code) }
