package telemetry

import "github.com/prometheus/client_golang/prometheus"

// registerMode adds the metrics that name the data plane and the rule layer. Both are unknown while the agent waits
// for the node lock.
func registerMode(r prometheus.Registerer, dataPlane, rules string) {
	add := func(name, help, label, value string) {
		if value == "" {
			return
		}
		g := gauges(name, help, label)
		g.WithLabelValues(value).Set(1)
		r.MustRegister(g)
	}
	add("kube_ipvs_data_plane", "Always 1; the label names what balances connections on this node: ipvs or nftables.", "data_plane", dataPlane)
	add("kube_ipvs_rules", "Always 1; the label names where the agent keeps its sets and rules on this node: iptables or nftables.", "rules", rules)
}
