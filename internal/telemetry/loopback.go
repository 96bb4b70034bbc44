package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-ipvs/kube-ipvs/internal/forward"
)

func registerLoopback(r prometheus.Registerer, counts func() forward.Counts) {
	if counts == nil {
		return
	}
	gauge := func(name, help string, value func(forward.Counts) int64) {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "kube_ipvs_loopback_" + name, Help: help},
			func() float64 { return float64(value(counts())) }))
	}
	counter := func(name, help string, value func(forward.Counts) uint64) {
		r.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "kube_ipvs_loopback_" + name, Help: help},
			func() float64 { return float64(value(counts())) }))
	}
	gauge("connections", "Open TCP connections to node ports on loopback addresses.", func(c forward.Counts) int64 { return c.Connections })
	gauge("flows", "UDP clients of node ports on loopback addresses.", func(c forward.Counts) int64 { return c.Flows })
	counter("refused_total", "TCP connections to node ports on loopback addresses that were refused because of the limit.",
		func(c forward.Counts) uint64 { return c.Refused })
	counter("replaced_total", "UDP clients of node ports on loopback addresses whose flows ended early, because the limit was reached.",
		func(c forward.Counts) uint64 { return c.Replaced })
	counter("failed_total", "Clients of node ports on loopback addresses that could not be connected to the Service.",
		func(c forward.Counts) uint64 { return c.Failed })
}
