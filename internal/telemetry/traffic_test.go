package telemetry

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

type counting struct {
	now map[kernel.ServerKey]Counted
	err error
}

func (c *counting) read(context.Context, bool) (map[kernel.ServerKey]Counted, error) {
	copied := map[kernel.ServerKey]Counted{}
	for key, counted := range c.now {
		copied[key] = counted
	}
	return copied, c.err
}

func trafficMetrics(c *counting, ports, endpoints int) *metrics {
	cfg := testConfig()
	cfg.Traffic = Traffic{Read: c.read, ServicePorts: ports, Endpoints: endpoints}
	return newMetrics(cfg)
}

func conns(n uint64) Counted { return Counted{Counters: Counters{Connections: n}} }

func serves(id model.ServiceID, servers ...string) *agent.Report {
	s := compile.Served{Frontends: webFrontends(servers...)}
	if len(servers) > 0 {
		s.Service = &model.Service{ID: id}
	}
	return &agent.Report{Served: map[model.ServiceID]compile.Served{id: s}}
}

func seriesOf(t *testing.T, m *metrics, name string) map[string]float64 {
	t.Helper()
	families, err := registryOf(m).Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, metric := range f.GetMetric() {
			var labels []string
			for _, l := range metric.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			all[strings.Join(labels, " ")] = metric.GetCounter().GetValue() + metric.GetGauge().GetValue()
		}
	}
	return all
}

func expectSeries(t *testing.T, when string, m *metrics, name string, want map[string]float64) {
	t.Helper()
	if d := gocmp.Diff(want, seriesOf(t, m, name)); d != "" {
		t.Errorf("%s: %s (-want +got)\n%s", when, name, d)
	}
}

const (
	serviceConnections = "kube_ipvs_service_connections_total"
	webPort            = "tcp web default https"
	dnsPort            = "tcp dns kube-system https"
)

// TestTrafficOfAService: a Service's counters are the sums over its virtual servers. They never decrease, and are
// removed with the Service.
func TestTrafficOfAService(t *testing.T) {
	const clusterIP, balancer, others = "10.96.0.1:443", "203.0.113.1:443", "192.0.2.9:443"
	c := &counting{now: map[kernel.ServerKey]Counted{key(clusterIP): conns(5), key(balancer): conns(7), key(others): conns(100)}}
	m := trafficMetrics(c, 10, 0)
	expectSeries(t, "before the first sync", m, serviceConnections, map[string]float64{})
	m.traffic.observe(serves(web, clusterIP, balancer))
	m.traffic.observe(serves(dns, "10.96.0.53:443"))
	expectSeries(t, "at first", m, serviceConnections, map[string]float64{webPort: 12, dnsPort: 0})

	c.now[key(clusterIP)] = conns(6)
	expectSeries(t, "one more", m, serviceConnections, map[string]float64{webPort: 13, dnsPort: 0})
	c.now[key(clusterIP)] = conns(2)
	expectSeries(t, "a virtual server recreated", m, serviceConnections, map[string]float64{webPort: 15, dnsPort: 0})

	missed := c.now[key(balancer)]
	delete(c.now, key(balancer))
	expectSeries(t, "a reading without a virtual server", m, serviceConnections, map[string]float64{webPort: 15, dnsPort: 0})
	c.now[key(balancer)] = missed
	expectSeries(t, "the next reading", m, serviceConnections, map[string]float64{webPort: 15, dnsPort: 0})
	m.traffic.observe(serves(web, clusterIP))
	delete(c.now, key(balancer))
	expectSeries(t, "a virtual server removed", m, serviceConnections, map[string]float64{webPort: 15, dnsPort: 0})

	c.err = errors.New("no answer")
	expectSeries(t, "unreadable", m, serviceConnections, map[string]float64{webPort: 15, dnsPort: 0})
	expectSeries(t, "unreadable for the second time", m, "kube_ipvs_traffic_read_failures_total", map[string]float64{"": 2})
	c.err = nil

	foreign := &agent.Report{Foreign: map[kernel.ServerKey]model.ServicePortRef{key(clusterIP): {Service: web}}}
	m.traffic.observe(foreign)
	c.now[key(clusterIP)] = conns(50)
	expectSeries(t, "another program's virtual server", m, serviceConnections, map[string]float64{webPort: 15, dnsPort: 0})

	m.traffic.observe(serves(web))
	expectSeries(t, "the Service deleted", m, serviceConnections, map[string]float64{dnsPort: 0})
	if len(m.traffic.owners) != 1 || len(m.traffic.servers) != 1 || len(m.traffic.ports.all) != 1 {
		t.Errorf("the deleted Service is still in %v, %v or %v", m.traffic.owners, m.traffic.servers, m.traffic.ports)
	}
}

// TestHungTrafficRead: while the kernel does not answer, scrapes start no second read, and omit open connections.
func TestHungTrafficRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const addr = "10.96.0.1:443"
		open := Counted{Counters: Counters{Connections: 5}, Endpoints: map[netip.AddrPort]CountedEndpoint{netip.MustParseAddrPort("10.244.0.1:443"): {Active: 1}}}
		c := &counting{now: map[kernel.ServerKey]Counted{key(addr): open}}
		m := trafficMetrics(c, 10, 10)
		m.traffic.observe(serves(web, addr))
		expectSeries(t, "at first", m, serviceConnections, map[string]float64{webPort: 5})
		reads, release := 0, make(chan struct{})
		m.traffic.cfg.Read = func(ctx context.Context, endpoints bool) (map[kernel.ServerKey]Counted, error) {
			reads++
			<-release
			return c.read(ctx, endpoints)
		}
		for range 50 {
			seriesOf(t, m, serviceConnections)
		}
		expectSeries(t, "hung", m, serviceConnections, map[string]float64{webPort: 5})
		expectSeries(t, "hung", m, "kube_ipvs_endpoint_active_connections", map[string]float64{})
		expectSeries(t, "hung", m, "kube_ipvs_traffic_read_failures_total", map[string]float64{"": 53})
		if reads != 1 {
			t.Errorf("%d reads", reads)
		}
		close(release)
		synctest.Wait()
		c.now = map[kernel.ServerKey]Counted{key(addr): conns(7)}
		expectSeries(t, "released", m, serviceConnections, map[string]float64{webPort: 7})
	})
}

// TestTrafficOfAMovedServer: if a virtual server moves to another Service port, later traffic counts toward that port,
// whichever of the two Services is reported first.
func TestTrafficOfAMovedServer(t *testing.T) {
	const at = "10.96.0.1:443"
	c := &counting{now: map[kernel.ServerKey]Counted{key(at): conns(5)}}
	m := trafficMetrics(c, 10, 0)
	m.traffic.observe(serves(web, at))
	expectSeries(t, "before", m, serviceConnections, map[string]float64{webPort: 5})
	m.traffic.observe(serves(dns, at))
	m.traffic.observe(serves(web))
	c.now[key(at)] = conns(8)
	expectSeries(t, "after", m, serviceConnections, map[string]float64{dnsPort: 3})
}

// TestTrafficDoesNotBlockTheLoop: a scrape that hangs in the kernel does not delay syncs.
func TestTrafficDoesNotBlockTheLoop(t *testing.T) {
	asked, answer := make(chan struct{}), make(chan struct{})
	cfg := testConfig()
	cfg.Traffic = Traffic{ServicePorts: 1, Read: func(context.Context, bool) (map[kernel.ServerKey]Counted, error) {
		close(asked)
		<-answer
		return map[kernel.ServerKey]Counted{}, nil
	}}
	m := newMetrics(cfg)
	scraped := make(chan struct{})
	go func() { defer close(scraped); _, _ = registryOf(m).Gather() }()
	<-asked
	m.traffic.observe(serves(web, "10.96.0.1:443")) // must not block
	close(answer)
	<-scraped
}

// TestTrafficIsBounded: there are no more series than the limits allow, ports keep their series, and busy ports take precedence over
// idle ports.
func TestTrafficIsBounded(t *testing.T) {
	c := &counting{now: map[kernel.ServerKey]Counted{key("10.96.0.1:443"): conns(5)}}
	m := trafficMetrics(c, 1, 0)
	m.traffic.observe(serves(web, "10.96.0.1:443"))
	m.traffic.observe(serves(model.ServiceID{Namespace: "a", Name: "a"}, "10.96.0.2:443"))
	expectSeries(t, "only the busy port", m, serviceConnections, map[string]float64{webPort: 5})
	expectSeries(t, "only the busy port", m, "kube_ipvs_traffic_series_omitted", map[string]float64{"port": 1}) // endpoints are off
	c.now[key("10.96.0.2:443")] = conns(9)
	expectSeries(t, "later", m, serviceConnections, map[string]float64{webPort: 5})
}

// TestTrafficOfEndpoints: endpoint series exist only if configured. They name the pod, and are removed with the endpoint.
func TestTrafficOfEndpoints(t *testing.T) {
	const server, connections, active = "10.96.0.1:443", "kube_ipvs_endpoint_connections_total", "kube_ipvs_endpoint_active_connections"
	at := netip.MustParseAddrPort("10.244.0.1:8443")
	c := &counting{now: map[kernel.ServerKey]Counted{key(server): {Endpoints: map[netip.AddrPort]CountedEndpoint{at: {Counters{Connections: 4}, 2}}}}}
	served := &agent.Report{Served: map[model.ServiceID]compile.Served{web: {Service: webService(), Frontends: webFrontends(server)}}}
	off := trafficMetrics(c, 10, 0)
	off.traffic.observe(served)
	expectSeries(t, "off", off, connections, map[string]float64{})

	m := trafficMetrics(c, 0, 10)
	m.traffic.observe(served)
	const series = "10.244.0.1:8443 default/web-1 tcp web default https"
	for range 2 {
		expectSeries(t, "on", m, connections, map[string]float64{series: 4})
		expectSeries(t, "on", m, active, map[string]float64{series: 2})
	}
	expectSeries(t, "no ports configured", m, serviceConnections, map[string]float64{})
	expectSeries(t, "no ports configured", m, "kube_ipvs_traffic_series_omitted", map[string]float64{"endpoint": 0})
	c.now[key(server)] = Counted{}
	expectSeries(t, "the endpoint removed", m, connections, map[string]float64{})
}

func TestRefusedConfiguration(t *testing.T) {
	refused := true
	cfg := testConfig()
	cfg.Refused = func() bool { return refused }
	m := newMetrics(cfg)
	expectSeries(t, "refused", m, "kube_ipvs_configuration_refused", map[string]float64{"": 1})
	refused = false
	expectSeries(t, "usable again", m, "kube_ipvs_configuration_refused", map[string]float64{"": 0})
}

func TestEndpointsByState(t *testing.T) {
	m := newMetrics(testConfig())
	observe := func(s *model.Service, draining int) {
		r := agent.Report{Served: map[model.ServiceID]compile.Served{web: {Service: s}}, Draining: draining}
		m.observe(&r)
	}
	const name = "kube_ipvs_endpoints"
	observe(webService(), 2)
	expectSeries(t, "new", m, name, map[string]float64{"ready": 1, "serving": 1, "unready": 1, "draining": 2})
	less := webService()
	less.Slices[0].Endpoints = less.Slices[0].Endpoints[:1]
	observe(less, 0)
	expectSeries(t, "two less", m, name, map[string]float64{"ready": 1, "serving": 0, "unready": 0, "draining": 0})
	observe(nil, 0)
	expectSeries(t, "gone", m, name, map[string]float64{"ready": 0, "serving": 0, "unready": 0, "draining": 0})
	if len(m.endpoints.perService) != 0 {
		t.Errorf("remembers %v", m.endpoints.perService)
	}
}

func scraped(tb testing.TB, services, limit int) (scrape func() string) {
	tb.Helper()
	r := quiet(start)
	r.Served = map[model.ServiceID]compile.Served{}
	servers := make([]kernel.ServerKey, services)
	for i := range services {
		id := model.ServiceID{Namespace: "default", Name: fmt.Sprintf("svc-%05d", i)}
		servers[i] = kernel.ServerKey{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), 80), Protocol: inet.TCP}
		svc := &model.Service{ID: id, Slices: []*model.EndpointSlice{{Endpoints: make([]model.Endpoint, 10)}}}
		r.Served[id] = compile.Served{Service: svc, Frontends: []compile.ServedFrontend{{Key: servers[i], Port: "http"}}}
	}
	n := uint64(0)
	cfg := testConfig()
	read := func(context.Context, bool) (map[kernel.ServerKey]Counted, error) {
		n++
		counted := make(map[kernel.ServerKey]Counted, len(servers))
		for i, key := range servers {
			counted[key] = Counted{Counters: Counters{uint64(i) * n, n, n, n, n}}
		}
		return counted, nil
	}
	if limit > 0 {
		cfg.Traffic = Traffic{ServicePorts: limit, Read: read}
	}
	m := newMetrics(cfg)
	registry := prometheus.NewRegistry()
	m.register(registry)
	m.observe(&r)
	handler := metricsHandler(registry, cfg, nil)
	return func() string {
		response, request := httptest.NewRecorder(), httptest.NewRequest("GET", "/metrics", nil)
		request.Header.Set("Accept", "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3")
		request.Header.Set("Accept-Encoding", "gzip")
		handler.ServeHTTP(response, request)
		return response.Body.String()
	}
}

// TestScrapeAllocatesNoLabels counts the allocations of a scrape. The client library makes a few allocations per series; labels
// would add twenty.
func TestScrapeAllocatesNoLabels(t *testing.T) {
	const services, seriesOfOne = 1000, 5
	scrape := scraped(t, 10*services, services)
	if text := scrape(); text == "" {
		t.Fatal("the scrape returned no metrics")
	}
	if n := testing.AllocsPerRun(3, func() { scrape() }) / services / seriesOfOne; n > 6 {
		t.Errorf("%.1f allocations per series, want at most 6", n)
	}
}

// TestSeriesGrowOnlyByASetting: without traffic metrics, which are off by default, more Services add no series.
func TestSeriesGrowOnlyByASetting(t *testing.T) {
	series := func(services, limit int) int { return strings.Count(gunzip(t, scraped(t, services, limit)()), "\n") }
	if few, many := series(10, 0), series(1000, 0); few != many {
		t.Errorf("%d lines with 10 Services, %d with 1,000", few, many)
	}
	if without, with := series(10, 0), series(10, 10); with <= without {
		t.Errorf("%d lines without traffic metrics, %d with them", without, with)
	}
}

func gunzip(t *testing.T, zipped string) string {
	t.Helper()
	r, err := gzip.NewReader(strings.NewReader(zipped))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestReusedAddressNamesItsPod: if a new pod reuses an endpoint's address, the series name the new pod.
func TestReusedAddressNamesItsPod(t *testing.T) {
	const server = "10.96.0.1:443"
	at := netip.MustParseAddrPort("10.244.0.1:8443")
	c := &counting{now: map[kernel.ServerKey]Counted{key(server): {Endpoints: map[netip.AddrPort]CountedEndpoint{at: {Counters{Connections: 4}, 2}}}}}
	m := trafficMetrics(c, 0, 10)
	for _, pod := range []string{"default/web-1", "default/web-2"} {
		svc := webService()
		for i := range svc.Slices[0].Endpoints {
			svc.Slices[0].Endpoints[i].Pod = pod
		}
		m.traffic.observe(&agent.Report{Served: map[model.ServiceID]compile.Served{web: {Service: svc, Frontends: webFrontends(server)}}})
		expectSeries(t, pod, m, "kube_ipvs_endpoint_connections_total", map[string]float64{"10.244.0.1:8443 " + pod + " tcp web default https": 4})
	}
}

func BenchmarkScrape(b *testing.B) {
	for _, size := range []struct{ services, limit int }{{10_000, 0}, {1_000, 1_000}, {10_000, 1_000}, {10_000, 10_000}} {
		b.Run(fmt.Sprintf("%d Services, %d with series", size.services, size.limit), func(b *testing.B) {
			scrape := scraped(b, size.services, size.limit)
			b.ReportAllocs()
			for b.Loop() {
				scrape()
			}
		})
	}
}
