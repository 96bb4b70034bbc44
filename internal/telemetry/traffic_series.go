package telemetry

import (
	"cmp"
	"context"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

var (
	portLabels     = []string{"service_namespace", "service_name", "service_port", "protocol"}
	endpointLabels = slices.Concat(portLabels, []string{"endpoint_address", "endpoint_pod"})
)

const labelDirection = "direction"

func trafficDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("kube_ipvs_"+name, help, labels, nil)
}

// descs describe the three counters of a Service port or of an endpoint.
type descs struct{ connections, packets, bytes *prometheus.Desc }

func newDescs(of, whose string, labels []string) descs {
	directed := slices.Concat(labels, []string{labelDirection})
	return descs{
		trafficDesc(of+"_connections_total", "IPVS connections "+whose+".", labels...),
		trafficDesc(of+"_packets_total", "Packets "+whose+"; direction in is from clients.", directed...),
		trafficDesc(of+"_bytes_total", "Bytes "+whose+", IP headers included; direction in is from clients.", directed...),
	}
}

var (
	portDescs     = newDescs("service", "through a Service port on this node", portLabels)
	endpointDescs = newDescs("endpoint", "from this node to an endpoint of a Service port", endpointLabels)
	activeDesc    = trafficDesc("endpoint_active_connections", "Open connections from this node to an endpoint of a Service port.", endpointLabels...)
	omittedDesc   = trafficDesc("traffic_series_omitted",
		"Service ports and endpoints without traffic series, because --metrics-service-ports or --metrics-endpoints is reached.", labelKind)
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

// read reads the kernel's counters, if any series need them.
func (t *traffic) read() (map[kernel.ServerKey]Counted, error) {
	if t.cfg.ServicePorts == 0 && t.cfg.Endpoints == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), trafficTimeout)
	defer cancel()
	now, err := t.cfg.Read(ctx, t.cfg.Endpoints > 0)
	if err != nil {
		t.failed.Inc()
		t.log.Warn("reading IPVS counters failed; serving previous values", zap.Error(err))
	}
	return now, err
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
	ports, portsOmitted := choose(t.ports, t.cfg.ServicePorts, portID.compare)
	for _, id := range ports {
		portDescs.collect(out, t.ports[id].Counters, id.labels())
	}
	endpoints, endpointsOmitted := choose(t.endpoints, t.cfg.Endpoints, func(a, b endpointID) int {
		return cmp.Or(a.port.compare(b.port), a.addr.Compare(b.addr))
	})
	for _, at := range endpoints {
		labels := append(at.port.labels(), at.addr.String(), t.pods[at.port.service][at.addr.Addr()])
		endpointDescs.collect(out, t.endpoints[at].Counters, labels)
		out <- prometheus.MustNewConstMetric(activeDesc, prometheus.GaugeValue, float64(t.endpoints[at].active), labels...)
	}
	collectOmitted(out, "port", portsOmitted, t.cfg.ServicePorts)
	collectOmitted(out, "endpoint", endpointsOmitted, t.cfg.Endpoints)
	t.failed.Collect(out)
}

// collectOmitted has no series for a kind that is switched off.
func collectOmitted(out chan<- prometheus.Metric, kind string, omitted, limit int) {
	if limit > 0 {
		out <- prometheus.MustNewConstMetric(omittedDesc, prometheus.GaugeValue, float64(omitted), kind)
	}
}

func (d descs) collect(out chan<- prometheus.Metric, c Counters, labels []string) {
	send := func(desc *prometheus.Desc, value uint64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(value), labels...)
	}
	in, back := slices.Concat(labels, []string{"in"}), slices.Concat(labels, []string{"out"})
	send(d.connections, c.Connections, labels...)
	send(d.packets, c.PacketsIn, in...)
	send(d.packets, c.PacketsOut, back...)
	send(d.bytes, c.BytesIn, in...)
	send(d.bytes, c.BytesOut, back...)
}

// choose picks the keys that get series: first those that have had them, then those with connections. The second result is the
// number of the others.
func choose[K comparable](all map[K]*tally, limit int, compare func(a, b K) int) ([]K, int) {
	keys := make([]K, 0, len(all))
	for key := range all {
		keys = append(keys, key)
	}
	first := func(a, b bool) int {
		switch {
		case a == b:
			return 0
		case a:
			return -1
		}
		return 1
	}
	if len(keys) > limit {
		slices.SortFunc(keys, func(a, b K) int {
			return cmp.Or(first(all[a].exported, all[b].exported), first(all[a].Connections > 0, all[b].Connections > 0), compare(a, b))
		})
	}
	chosen := keys[:min(len(keys), limit)]
	for _, key := range chosen {
		all[key].exported = true
	}
	return chosen, len(keys) - len(chosen)
}
