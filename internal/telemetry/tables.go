package telemetry

import "github.com/prometheus/client_golang/prometheus"

// Tables contains the sizes of the kernel's connection tables. A value is nil if it is unknown.
type Tables struct {
	// Tracked is the number of tracked connections; a TrackedLimit of 0 means no limit.
	Tracked, TrackedLimit *uint64
	// Connections is the number of IPVS connections, and Buckets is the size of their hash table.
	Connections, Buckets *uint64
}

type tables func() Tables

var (
	trackedDesc = prometheus.NewDesc("kube_ipvs_conntrack_entries",
		"Connections that the kernel tracks on this node; absent if the nf_conntrack module is not loaded.", nil, nil)
	trackedLimitDesc = prometheus.NewDesc("kube_ipvs_conntrack_entries_limit",
		"Maximum number of tracked connections (nf_conntrack_max). At the limit, the kernel drops new connections. Absent if there is no limit.", nil, nil)
	connectionsDesc = prometheus.NewDesc("kube_ipvs_connections",
		"Open and closing IPVS connections through all virtual servers of this node, including foreign ones; absent with other data planes.", nil, nil)
	bucketsDesc = prometheus.NewDesc("kube_ipvs_connection_table_buckets",
		"Hash buckets of IPVS's connection table (conn_tab_bits). Each packet searches one bucket. Absent with other data planes.", nil, nil)
)

func (f tables) Describe(out chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{trackedDesc, trackedLimitDesc, connectionsDesc, bucketsDesc} {
		out <- desc
	}
}

func (f tables) Collect(out chan<- prometheus.Metric) {
	t := f()
	if t.TrackedLimit != nil && *t.TrackedLimit == 0 {
		t.TrackedLimit = nil
	}
	for desc, value := range map[*prometheus.Desc]*uint64{
		trackedDesc: t.Tracked, trackedLimitDesc: t.TrackedLimit, connectionsDesc: t.Connections, bucketsDesc: t.Buckets,
	} {
		if value != nil {
			out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(*value))
		}
	}
}
