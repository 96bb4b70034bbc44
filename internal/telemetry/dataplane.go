package telemetry

import "github.com/prometheus/client_golang/prometheus"

// registerDataPlane adds the metric for what balances connections. The data plane is unknown while the agent waits for the
// node lock.
func registerDataPlane(r prometheus.Registerer, name string) {
	if name == "" {
		return
	}
	g := gauges("kube_ipvs_data_plane", "Always 1; the label says what balances connections on this node: ipvs or nftables.", "data_plane")
	g.WithLabelValues(name).Set(1)
	r.MustRegister(g)
}
