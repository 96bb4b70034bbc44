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

// descs are those of the three counters of a Service's port or of an endpoint.
type descs struct{ connections, packets, bytes *prometheus.Desc }

func newDescs(of, whose string, labels []string) descs {
	directed := slices.Concat(labels, []string{labelDirection})
	return descs{
		trafficDesc(of+"_connections_total", "Connections "+whose+" that IPVS has made.", labels...),
		trafficDesc(of+"_packets_total", "Packets "+whose+", by direction: in is what clients send.", directed...),
		trafficDesc(of+"_bytes_total", "Bytes "+whose+" with the packets' IP headers, by direction: in is what clients send.", directed...),
	}
}

var (
	portDescs     = newDescs("service", "through a port of a Service on this node", portLabels)
	endpointDescs = newDescs("endpoint", "to an endpoint of a Service's port from this node", endpointLabels)
	activeDesc    = trafficDesc("endpoint_active_connections", "Open connections to an endpoint of a Service's port from this node.", endpointLabels...)
	leftOutDesc   = trafficDesc("traffic_left_out",
		"Ports of Services, and endpoints, without series of their own, because there are more than the configuration lets be told of.", labelKind)
)

// Describe implements prometheus.Collector.
func (t *traffic) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		portDescs.connections, portDescs.packets, portDescs.bytes,
		endpointDescs.connections, endpointDescs.packets, endpointDescs.bytes, activeDesc, leftOutDesc,
	} {
		out <- d
	}
	t.failed.Describe(out)
}

// read reads the kernel's counters, if they are wanted.
func (t *traffic) read() (map[kernel.ServerKey]Counted, error) {
	if t.cfg.ServicePorts == 0 && t.cfg.Endpoints == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), trafficTimeout)
	defer cancel()
	now, err := t.cfg.Read(ctx, t.cfg.Endpoints > 0)
	if err != nil {
		t.failed.Inc()
		t.log.Warn("the kernel's counters cannot be read; metrics tell the values from before", zap.Error(err))
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
	ports, portsLeft := choose(t.ports, t.cfg.ServicePorts, portID.compare)
	for _, id := range ports {
		portDescs.tell(out, t.ports[id].Counters, id.labels())
	}
	endpoints, endpointsLeft := choose(t.endpoints, t.cfg.Endpoints, func(a, b endpointID) int {
		return cmp.Or(a.port.compare(b.port), a.addr.Compare(b.addr))
	})
	for _, at := range endpoints {
		labels := append(at.port.labels(), at.addr.String(), t.pods[at.port.service][at.addr.Addr()])
		endpointDescs.tell(out, t.endpoints[at].Counters, labels)
		out <- prometheus.MustNewConstMetric(activeDesc, prometheus.GaugeValue, float64(t.endpoints[at].active), labels...)
	}
	tellLeftOut(out, "port", portsLeft, t.cfg.ServicePorts)
	tellLeftOut(out, "endpoint", endpointsLeft, t.cfg.Endpoints)
	t.failed.Collect(out)
}

// tellLeftOut tells nothing where nothing is to be told of anyway.
func tellLeftOut(out chan<- prometheus.Metric, kind string, left, limit int) {
	if limit > 0 {
		out <- prometheus.MustNewConstMetric(leftOutDesc, prometheus.GaugeValue, float64(left), kind)
	}
}

func (d descs) tell(out chan<- prometheus.Metric, c Counters, labels []string) {
	tell := func(desc *prometheus.Desc, value uint64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(value), labels...)
	}
	in, back := slices.Concat(labels, []string{"in"}), slices.Concat(labels, []string{"out"})
	tell(d.connections, c.Connections, labels...)
	tell(d.packets, c.PacketsIn, in...)
	tell(d.packets, c.PacketsOut, back...)
	tell(d.bytes, c.BytesIn, in...)
	tell(d.bytes, c.BytesOut, back...)
}

// choose takes as many as may be told of: who has a series keeps it, then those with connections come before those without. The
// second result counts the others.
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
			return cmp.Or(first(all[a].shown, all[b].shown), first(all[a].Connections > 0, all[b].Connections > 0), compare(a, b))
		})
	}
	chosen := keys[:min(len(keys), limit)]
	for _, key := range chosen {
		all[key].shown = true
	}
	return chosen, len(keys) - len(chosen)
}
