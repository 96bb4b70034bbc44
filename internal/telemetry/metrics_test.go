package telemetry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/agent/contest"
	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/forward"
	"github.com/kube-ipvs/kube-ipvs/internal/goldentest"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func testConfig() Config {
	return Config{
		DataPlane: "ipvs", Rules: "iptables",
		Version: "v1.2.3", Commit: "abc", Node: "node-1", Families: inet.Families, Period: 30 * time.Second, Log: zap.NewNop(),
	}
}

var (
	web      = model.ServiceID{Namespace: "default", Name: "web"}
	webSlice = model.ObjectRef{Kind: model.KindEndpointSlice, Namespace: "default", Name: "web-1"}
	thisNode = model.NodeRef("node-1")
	dns      = model.ServiceID{Namespace: "kube-system", Name: "dns"}
	start    = time.Unix(1_800_000_000, 0)
	errIO    = errors.New("input/output error")
)

func problemOf(id model.ServiceID, field, reason string) model.Problem {
	return model.Problem{Object: id.Ref(), Service: id, Field: field, Reason: reason}
}

func key(text string) kernel.ServerKey {
	return kernel.ServerKey{Addr: netip.MustParseAddrPort(text), Protocol: inet.TCP}
}

// webService has an endpoint in each state.
func webService() *model.Service {
	at := func(addr, pod string) model.Endpoint {
		return model.Endpoint{Addr: netip.MustParseAddr(addr), Pod: pod}
	}
	ready, serving, unready := at("10.244.0.1", "default/web-1"), at("10.244.0.2", "default/web-2"), at("10.244.0.3", "default/web-3")
	ready.Ready, ready.Serving = true, true
	serving.Serving, serving.Terminating = true, true
	return &model.Service{ID: web, Slices: []*model.EndpointSlice{{Endpoints: []model.Endpoint{ready, serving, unready}}}}
}

func webFrontends(places ...string) []compile.ServedFrontend {
	var fronts []compile.ServedFrontend
	for _, place := range places {
		fronts = append(fronts, compile.ServedFrontend{Key: key(place), Port: "https"})
	}
	return fronts
}

var drifted = contest.Find([]kernel.Op{
	{Verb: kernel.Create, Object: kernel.DummyDevice{}},
	{Verb: kernel.Ensure, Object: kernel.SysctlSetting{Name: "net/ipv4/ip_forward", Value: "1"}},
}, nil, map[string]string{"net/ipv4/ip_forward": "0"})

// busy returns the report of a full sync that uses every field.
func busy() agent.Report {
	rules := kernel.Ruleset{Family: inet.IPv6}
	return agent.Report{
		Started: start, Duration: 40 * time.Millisecond, Full: true, Drift: 2, Drifted: drifted,
		Compiled: []model.ServiceID{web, dns}, Services: 2,
		Problems: map[model.ServiceID][]model.Problem{
			web: {problemOf(web, "spec.ports[0]", "wrong"), problemOf(web, "spec.ports[1]", "wrong")}, dns: nil,
		},
		Unreadable: map[model.ObjectRef][]model.Problem{
			webSlice:                  {problemOf(web, "endpoints[0]", "wrong")},
			model.FileRef("web.yaml"): {{Object: model.FileRef("web.yaml"), Reason: "wrong"}},
			thisNode:                  {{Object: thisNode, Reason: "wrong"}},
		},
		Foreign:   map[kernel.ServerKey]model.ServicePortRef{key("10.96.0.1:443"): {Service: web}},
		Leftovers: diff.Leftovers{Servers: []kernel.ServerKey{key("10.96.0.9:443")}},
		Results: []agent.Result{
			{Op: kernel.Op{Verb: kernel.Ensure, Object: rules}, Err: errIO},
			{Op: kernel.Op{Verb: kernel.Create, Object: kernel.Server{}}},
			{Op: kernel.Op{Verb: kernel.Create, Object: kernel.Server{}}},
			{Op: kernel.Op{Verb: kernel.Delete, Object: kernel.ServerDestination{}}, Err: errIO, Skipped: true},
			// Skipped rules were not tried, so they do not count as failed.
			{Op: kernel.Op{Verb: kernel.Ensure, Object: rules}, Err: errIO, Skipped: true},
		},
		Served: map[model.ServiceID]compile.Served{
			web: {
				Service: webService(), Frontends: webFrontends("10.96.0.2:443"), NoLocal: []compile.NoLocal{{Family: inet.IPv4}, {Family: inet.IPv4, External: true}},
			},
			dns: {NoLocal: []compile.NoLocal{{Family: inet.IPv4}}},
		},
		VirtualServers: 5, Draining: 1, Stages: agent.Stages{Compile: time.Millisecond, Plan: 10 * time.Millisecond, Apply: 20 * time.Millisecond},
		EndedFlows: 3, Period: 30 * time.Second, NextAudit: 30 * time.Second,
		Programmed: []model.Trigger{{Family: inet.IPv6, At: start.Add(-2 * time.Second), Received: start.Add(-time.Second)}},
		Err:        errIO, RetryAfter: 200 * time.Millisecond,
	}
}

func quiet(at time.Time) agent.Report {
	return agent.Report{Started: at, Duration: time.Second, Full: true, Services: 2, Period: 30 * time.Second, NextAudit: time.Minute}
}

func registryOf(m *metrics) *prometheus.Registry {
	r := prometheus.NewPedanticRegistry()
	m.register(r)
	return r
}

// values returns the nonzero series, without buckets.
func values(t *testing.T, m *metrics) map[string]float64 {
	t.Helper()
	families, err := registryOf(m).Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, metric := range f.GetMetric() {
			name := f.GetName()
			for _, l := range metric.GetLabel() {
				name += fmt.Sprintf(" %s=%s", l.GetName(), l.GetValue())
			}
			v := metric.GetGauge().GetValue() + metric.GetCounter().GetValue() + float64(metric.GetHistogram().GetSampleCount())
			if v != 0 && f.GetName() != "kube_ipvs_build_info" && f.GetName() != "kube_ipvs_data_plane" && f.GetName() != "kube_ipvs_rules" {
				all[name] = v
			}
		}
	}
	return all
}

func complete() *metrics {
	cfg := testConfig()
	cfg.Source = Source{
		LastContact: func() map[string]time.Time {
			return map[string]time.Time{"Service": start, "EndpointSlice": start, "Node": start}
		},
		Snapshot: func() (time.Time, bool) { return start, true },
		Changes:  func() Changes { return Changes{Services: 7, ServicesPending: 1, Endpoints: 9, EndpointsPending: 2} },
	}
	cfg.Traffic = Traffic{ServicePorts: 10, Endpoints: 10, Read: func(context.Context, bool) (map[kernel.ServerKey]Counted, error) {
		return map[kernel.ServerKey]Counted{key("10.96.0.1:443"): {
			Counters:  Counters{Connections: 4, PacketsIn: 40, PacketsOut: 30, BytesIn: 4000, BytesOut: 90_000},
			Endpoints: map[netip.AddrPort]CountedEndpoint{netip.MustParseAddrPort("10.244.0.1:8443"): {Counters{Connections: 4}, 2}},
		}}, nil
	}}
	cfg.Tables = func() Tables {
		tracked, limit, connections, buckets := uint64(2000), uint64(262144), uint64(300), uint64(4096)
		return Tables{&tracked, &limit, &connections, &buckets}
	}
	cfg.Loopback = func() forward.Counts { return forward.Counts{Connections: 3, Flows: 1} }
	m := newMetrics(cfg)
	m.traffic.observe(&agent.Report{Served: map[model.ServiceID]compile.Served{web: {Service: webService(), Frontends: webFrontends("10.96.0.1:443")}}})
	ctx, hooks, at := context.Background(), m.client.hooks(), url.URL{Scheme: "https", Host: "192.0.2.10:6443"}
	hooks.RequestResult.Increment(ctx, "200", "GET", at.Host)
	hooks.RequestRetry.IncrementRetry(ctx, "429", "GET", at.Host)
	hooks.RequestLatency.Observe(ctx, "GET", at, time.Second)
	hooks.RateLimiterLatency.Observe(ctx, "GET", at, time.Second)
	hooks.RequestSize.Observe(ctx, "POST", at.Host, 100)
	hooks.ResponseSize.Observe(ctx, "GET", at.Host, 100)
	return m
}

func exposition(t *testing.T, m *metrics) string {
	t.Helper()
	response := httptest.NewRecorder()
	metricsHandler(registryOf(m), testConfig(), m.mode).ServeHTTP(response, httptest.NewRequest("GET", "/metrics", nil))
	return response.Body.String()
}

func known() *agent.KnownProblems { return agent.NewKnownProblems(testConfig().Node) }

func TestExposition(t *testing.T) {
	m := complete()
	r := busy()
	known().Update(&r)
	m.observe(&r)
	// The Go version differs between toolchains.
	var lines []string
	for line := range strings.Lines(exposition(t, m)) {
		if !strings.HasPrefix(line, "kube_ipvs_build_info") {
			lines = append(lines, line)
		}
	}
	goldentest.Compare(t, filepath.Join("testdata", "metrics.golden"), strings.Join(lines, ""))
}

func TestLint(t *testing.T) {
	families, err := registryOf(complete()).Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if p.Metric == "kubeproxy_sync_proxy_rules_no_local_endpoints_total" {
			continue // a gauge with a counter's name, as in kube-proxy
		}
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

func TestDocs(t *testing.T) {
	families, err := registryOf(complete()).Gather()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join("testdata", "metrics.md.tmpl"))
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, f := range families {
		labels := map[string][]string{"data_plane": {"nftables"}, "rules": {"nftables"}} // each agent has one of the values
		var names []string
		for _, metric := range f.GetMetric() {
			for _, l := range metric.GetLabel() {
				if !slices.Contains(names, l.GetName()) {
					names = append(names, l.GetName())
				}
				if !slices.Contains(labels[l.GetName()], l.GetValue()) {
					labels[l.GetName()] = append(labels[l.GetName()], l.GetValue())
				}
			}
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.GetName(), strings.ToLower(f.GetType().String()),
			labelDocs(f.GetName(), names, labels), strings.ReplaceAll(f.GetHelp(), "|", "\\|"))
	}
	goldentest.Compare(t, filepath.Join("..", "..", "docs", "metrics.md"), strings.Replace(string(page), "{{METRICS}}\n", b.String()+"\n", 1))
}

func labelDocs(metric string, names []string, labels map[string][]string) string {
	var parts []string
	for _, name := range names {
		part := "`" + name + "`"
		if metric != "kube_ipvs_build_info" && !strings.HasPrefix(metric, "rest_client_") && !slices.Contains(endpointLabels, name) {
			slices.SortFunc(labels[name], cmp.Compare[string])
			part += ": " + strings.Join(labels[name], ", ")
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, "; ")
}

func TestCounts(t *testing.T) {
	m := newMetrics(testConfig())
	r := busy()
	known().Update(&r)
	m.observe(&r)
	want := map[string]float64{
		"kubeproxy_sync_proxy_rules_duration_seconds ip_family=IPv4":                1,
		"kubeproxy_sync_proxy_rules_duration_seconds ip_family=IPv6":                1,
		"kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds ip_family=IPv4":   1.8e9,
		"kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds ip_family=IPv6":   1.8e9,
		"kubeproxy_sync_proxy_rules_iptables_restore_failures_total ip_family=IPv6": 1,
		"kube_ipvs_virtual_servers":                                                                  5,
		"kube_ipvs_endpoints state=ready":                                                            1,
		"kube_ipvs_endpoints state=serving":                                                          1,
		"kube_ipvs_endpoints state=unready":                                                          1,
		"kube_ipvs_endpoints state=draining":                                                         1,
		"kube_ipvs_programming_stage_duration_seconds stage=delivery":                                1,
		"kube_ipvs_programming_stage_duration_seconds stage=wait":                                    1,
		"kube_ipvs_programming_stage_duration_seconds stage=compile":                                 1,
		"kube_ipvs_programming_stage_duration_seconds stage=plan":                                    1,
		"kube_ipvs_programming_stage_duration_seconds stage=apply":                                   1,
		"kube_ipvs_services":                                                                         2,
		"kube_ipvs_services_compiled_total":                                                          2,
		"kube_ipvs_problems kind=service":                                                            2,
		"kube_ipvs_problems kind=endpointslice":                                                      1,
		"kube_ipvs_problems kind=node":                                                               1,
		"kube_ipvs_problems kind=file":                                                               1,
		"kube_ipvs_operations_total kind=rules result=failed verb=ensure":                            1,
		"kube_ipvs_operations_total kind=rules result=skipped verb=ensure":                           1,
		"kube_ipvs_operations_total kind=server result=ok verb=create":                               2,
		"kube_ipvs_operations_total kind=destination result=skipped verb=delete":                     1,
		"kube_ipvs_syncs_total kind=full result=failed":                                              1,
		"kube_ipvs_drift_repairs_total kind=missing part=device":                                     1,
		"kube_ipvs_drift_repairs_total kind=changed part=sysctl":                                     1,
		"kube_ipvs_foreign_servers":                                                                  1,
		"kubeproxy_network_programming_duration_seconds ip_family=IPv6":                              1,
		"kubeproxy_sync_proxy_rules_no_local_endpoints_total ip_family=IPv4 traffic_policy=internal": 2,
		"kubeproxy_sync_proxy_rules_no_local_endpoints_total ip_family=IPv4 traffic_policy=external": 1,
		"kube_ipvs_ended_flows_total":                                                                3,
		"kube_ipvs_retry_pending":                                                                    1,
		"kube_ipvs_retry_wait_seconds":                                                               0.2,
	}
	if d := gocmp.Diff(want, values(t, m)); d != "" {
		t.Errorf("after a busy sync (-want +got):\n%s", d)
	}
}

// TestGaugesFollow: a gauge changes only if a Report contains its value.
func TestGaugesFollow(t *testing.T) {
	m := newMetrics(testConfig())
	before := known()
	observe := func(r agent.Report) { before.Update(&r); m.observe(&r) }
	check := func(when string, want map[string]float64) {
		t.Helper()
		got := values(t, m)
		for name, v := range want {
			if got[name] != v {
				t.Errorf("%s: %s is %v, want %v", when, name, got[name], v)
			}
		}
	}
	observe(busy())
	// A successful incremental sync does not clear earlier failures, or the findings of full syncs.
	observe(agent.Report{Started: start.Add(time.Second), Services: 2})
	check("after an incremental sync", map[string]float64{
		"kube_ipvs_retry_pending": 1, "kube_ipvs_problems kind=service": 2, "kube_ipvs_last_full_sync_timestamp_seconds": 0,
		"kube_ipvs_full_sync_interval_seconds":                                    0,
		"kubeproxy_sync_proxy_rules_last_timestamp_seconds ip_family=IPv4":        1.8e9 + 1,
		"kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds ip_family=IPv4": 1.8e9,
		"kube_ipvs_syncs_total kind=incremental result=ok":                        1,
	})
	r := quiet(start.Add(2 * time.Second))
	r.Problems = map[model.ServiceID][]model.Problem{web: {problemOf(web, "spec.ports[0]", "wrong")}}
	r.Unreadable = map[model.ObjectRef][]model.Problem{webSlice: nil}
	r.Served = busy().Served
	web1 := r.Served[web]
	web1.NoLocal = web1.NoLocal[:1]
	r.Served[web], r.Served[dns] = web1, compile.Served{}
	r.Leftovers.Addresses = []netip.Addr{netip.MustParseAddr("10.96.0.7")}
	observe(r)
	check("after a full sync", map[string]float64{
		"kube_ipvs_retry_pending": 0, "kube_ipvs_retry_wait_seconds": 0, "kube_ipvs_last_full_sync_timestamp_seconds": 1.8e9 + 3,
		"kube_ipvs_full_sync_interval_seconds": 60,
		"kube_ipvs_problems kind=service":      1, "kube_ipvs_problems kind=endpointslice": 0, "kube_ipvs_problems kind=file": 1,
		"kube_ipvs_leftovers kind=address": 1, "kube_ipvs_leftovers kind=server": 0, "kube_ipvs_foreign_servers": 0,
		"kubeproxy_sync_proxy_rules_no_local_endpoints_total ip_family=IPv4 traffic_policy=internal": 1,
		"kubeproxy_sync_proxy_rules_no_local_endpoints_total ip_family=IPv4 traffic_policy=external": 0,
	})
	observe(agent.Report{Started: start, Problems: map[model.ServiceID][]model.Problem{web: nil}})
}

// TestSourceIsReadAtEachScrape: the source's series are up to date even between syncs.
func TestSourceIsReadAtEachScrape(t *testing.T) {
	heard, changes := start, Changes{Services: 1, ServicesPending: 1}
	cfg := testConfig()
	cfg.Source = Source{
		LastContact: func() map[string]time.Time { return map[string]time.Time{"EndpointSlice": heard} },
		Changes:     func() Changes { return changes },
	}
	m := newMetrics(cfg)
	want := map[string]float64{
		"kube_ipvs_source_last_heard_timestamp_seconds kind=endpointslice": 1.8e9,
		"kubeproxy_sync_proxy_rules_service_changes_total":                 1,
		"kubeproxy_sync_proxy_rules_service_changes_pending":               1,
	}
	if d := gocmp.Diff(want, values(t, m)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	heard, changes = start.Add(time.Second), Changes{Services: 1, Endpoints: 5, EndpointsPending: 2}
	want = map[string]float64{
		"kube_ipvs_source_last_heard_timestamp_seconds kind=endpointslice": 1.8e9 + 1,
		"kubeproxy_sync_proxy_rules_service_changes_total":                 1,
		"kubeproxy_sync_proxy_rules_endpoint_changes_total":                5,
		"kubeproxy_sync_proxy_rules_endpoint_changes_pending":              2,
	}
	if d := gocmp.Diff(want, values(t, m)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestEveryOperationIsCounted: no operation is counted under an empty label.
func TestEveryOperationIsCounted(t *testing.T) {
	for _, object := range []kernel.Object{
		kernel.SysctlSetting{}, kernel.DummyDevice{}, kernel.BoundAddress{}, kernel.Set{}, kernel.Member{}, kernel.Ruleset{},
		kernel.Server{}, kernel.ServerDestination{},
	} {
		kind := kernel.Op{Object: object}.KindOf()
		if kindNames[kind] == "" || len(verbsOf[kind]) == 0 {
			t.Errorf("%T has no name or no verbs", object)
		}
		for _, verb := range verbsOf[kind] {
			if verbNames[verb] == "" {
				t.Errorf("%T: verb %d has no name", object, verb)
			}
		}
	}
}

func BenchmarkObserve(b *testing.B) {
	m := newMetrics(testConfig())
	r := quiet(start)
	r.Problems = map[model.ServiceID][]model.Problem{}
	for i := range 10_000 {
		r.Problems[model.ServiceID{Namespace: "default", Name: fmt.Sprint("web-", i)}] = nil
		r.Results = append(r.Results, agent.Result{Op: kernel.Op{Verb: kernel.Create, Object: kernel.Server{}}})
	}
	for b.Loop() {
		m.observe(&r)
	}
}
