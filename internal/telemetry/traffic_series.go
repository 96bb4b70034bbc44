package telemetry

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

var (
	portLabels     = []string{"service_namespace", "service_name", "service_port", "protocol"}
	podLabels      = []string{"endpoint_address", "endpoint_pod"}
	endpointLabels = slices.Concat(portLabels, podLabels)
)

const labelDirection = "direction"

func trafficDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("kube_ipvs_"+name, help, labels, nil)
}

type descs struct{ connections, packets, bytes *prometheus.Desc }

func newDescs(of, whose string, labels []string) descs {
	directed := slices.Concat(labels, []string{labelDirection})
	return descs{
		trafficDesc(of+"_connections_total", "Connections "+whose+".", labels...),
		trafficDesc(of+"_packets_total", "Packets "+whose+"; direction \"in\" means from clients.", directed...),
		trafficDesc(of+"_bytes_total", "Bytes "+whose+", including IP headers with IPVS, and without headers in user space; direction \"in\" means from clients.", directed...),
	}
}

var (
	portDescs     = newDescs("service", "through a Service port on this node", portLabels)
	endpointDescs = newDescs("endpoint", "from this node to an endpoint of a Service port", endpointLabels)
	activeDesc    = trafficDesc("endpoint_active_connections", "Open connections from this node to an endpoint of a Service port.", endpointLabels...)
	omittedDesc   = trafficDesc("traffic_series_omitted",
		"Service ports and endpoints without traffic series, because of the limit --metrics-service-ports or --metrics-endpoints.", labelKind)
)

// Describe implements prometheus.Collector.
func (t *traffic) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		portDescs.connections, portDescs.packets, portDescs.bytes,
		endpointDescs.connections, endpointDescs.packets, endpointDescs.bytes, activeDesc, omittedDesc,
	} {
		out <- d
	}
	t.failed.Describe(out)
}

func (t *traffic) read() (map[kernel.ServerKey]Counted, error) {
	if t.cfg.ServicePorts == 0 && t.cfg.Endpoints == 0 {
		return nil, nil
	}
	now, err := t.readOnce()
	if err != nil {
		t.failed.Inc()
		t.log.Warn("reading traffic counters failed; serving previous values, without open connections", zap.Error(err))
	}
	return now, err
}

var errHung = errors.New("the kernel has not answered; if dmesg shows hung tasks, restart the node")

// readOnce waits at most trafficTimeout for the kernel. While a read hangs, no other read starts or waits. A
// late result is discarded, because the time of the counts is unknown.
func (t *traffic) readOnce() (map[kernel.ServerKey]Counted, error) {
	select {
	case t.reading <- struct{}{}:
	default:
		return nil, errHung
	}
	ctx, cancel := context.WithTimeout(context.Background(), trafficTimeout)
	defer cancel()
	type result struct {
		now map[kernel.ServerKey]Counted
		err error
	}
	read := make(chan result, 1)
	go func() {
		now, err := t.cfg.Read(ctx, t.cfg.Endpoints > 0)
		<-t.reading
		read <- result{now, err}
	}()
	select {
	case r := <-read:
		return r.now, r.err
	case <-ctx.Done():
		return nil, errHung
	}
}

// Collect implements prometheus.Collector.
func (t *traffic) Collect(out chan<- prometheus.Metric) {
	t.scraping.Lock()
	defer t.scraping.Unlock()
	now, err := t.read()
	t.mu.Lock()
	defer t.mu.Unlock()
	if err == nil {
		t.count(now)
	}
	for _, id := range t.ports.choose(t.cfg.ServicePorts) {
		port := t.ports.all[id]
		if port.labels == nil {
			port.labels = newLabels(id.labels())
		}
		portDescs.collect(out, port.Counters, port.labels)
	}
	for _, at := range t.endpoints.choose(t.cfg.Endpoints) {
		endpoint, pod := t.endpoints.all[at], t.pods[at.port.service][at.addr.Addr()]
		if endpoint.labels == nil || endpoint.pod != pod {
			endpoint.pod, endpoint.labels = pod, newLabels(slices.Concat(at.port.labels(), pairs(podLabels, at.addr.String(), pod)))
		}
		endpointDescs.collect(out, endpoint.Counters, endpoint.labels)
		if err == nil {
			out <- &sample{activeDesc, endpoint.labels.plain, prometheus.GaugeValue, float64(endpoint.active)}
		}
	}
	collectOmitted(out, "port", t.ports.omitted(), t.cfg.ServicePorts)
	collectOmitted(out, "endpoint", t.endpoints.omitted(), t.cfg.Endpoints)
	t.failed.Collect(out)
}

// collectOmitted exports nothing if the limit is 0.
func collectOmitted(out chan<- prometheus.Metric, kind string, omitted, limit int) {
	if limit > 0 {
		out <- prometheus.MustNewConstMetric(omittedDesc, prometheus.GaugeValue, float64(omitted), kind)
	}
}

func (d descs) collect(out chan<- prometheus.Metric, c Counters, l *labels) {
	send := func(desc *prometheus.Desc, value uint64, labels []*dto.LabelPair) {
		out <- &sample{desc, labels, prometheus.CounterValue, float64(value)}
	}
	send(d.connections, c.Connections, l.plain)
	send(d.packets, c.PacketsIn, l.in)
	send(d.packets, c.PacketsOut, l.out)
	send(d.bytes, c.BytesIn, l.in)
	send(d.bytes, c.BytesOut, l.out)
}

// sample is the value of one series in one scrape. The client library's constant metrics would create and sort the labels on each scrape.
type sample struct {
	desc   *prometheus.Desc
	labels []*dto.LabelPair
	kind   prometheus.ValueType
	value  float64
}

// Desc implements prometheus.Metric.
func (s *sample) Desc() *prometheus.Desc { return s.desc }

// Write implements prometheus.Metric.
func (s *sample) Write(m *dto.Metric) error {
	m.Label = s.labels
	if s.kind == prometheus.GaugeValue {
		m.Gauge = &dto.Gauge{Value: &s.value}
	} else {
		m.Counter = &dto.Counter{Value: &s.value}
	}
	return nil
}

// labels contains the labels of one port or endpoint: plain has no direction label, in and out have one. The labels are immutable.
type labels struct{ plain, in, out []*dto.LabelPair }

var (
	directionIn  = pairs([]string{labelDirection}, "in")
	directionOut = pairs([]string{labelDirection}, "out")
)

// newLabels sorts labels by name, as Prometheus requires.
func newLabels(plain []*dto.LabelPair) *labels {
	sorted := func(pairs []*dto.LabelPair) []*dto.LabelPair {
		slices.SortFunc(pairs, func(a, b *dto.LabelPair) int { return cmp.Compare(a.GetName(), b.GetName()) })
		return pairs
	}
	return &labels{sorted(plain), sorted(slices.Concat(plain, directionIn)), sorted(slices.Concat(plain, directionOut))}
}

func (p portID) labels() []*dto.LabelPair {
	return pairs(portLabels, p.service.Namespace, p.service.Name, p.port, p.protocol)
}

func pairs(names []string, values ...string) []*dto.LabelPair {
	all := make([]*dto.LabelPair, len(names))
	for i := range names {
		all[i] = &dto.LabelPair{Name: &names[i], Value: &values[i]}
	}
	return all
}

// tallies contains the tallies of all ports or all endpoints, and the keys that have series.
type tallies[K comparable] struct {
	all     map[K]*tally
	compare func(a, b K) int
	// chosen is sorted.
	chosen []K
}

// choose picks the keys that get series. Keys that already have series take precedence, then keys with connections.
func (t *tallies[K]) choose(limit int) []K {
	t.chosen = slices.DeleteFunc(t.chosen, func(key K) bool { return t.all[key] == nil || !t.all[key].exported })
	room := min(limit, len(t.all)) - len(t.chosen)
	if room <= 0 {
		return t.chosen
	}
	var busy, idle []K
	for key, total := range t.all {
		switch {
		case total.exported:
		case total.Connections > 0:
			busy = append(busy, key)
		default:
			idle = append(idle, key)
		}
	}
	slices.SortFunc(busy, t.compare)
	slices.SortFunc(idle, t.compare)
	for _, key := range slices.Concat(busy, idle)[:room] {
		t.all[key].exported = true
		t.chosen = append(t.chosen, key)
	}
	slices.SortFunc(t.chosen, t.compare)
	return t.chosen
}

func (t *tallies[K]) omitted() int { return len(t.all) - len(t.chosen) }
