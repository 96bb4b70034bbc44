package telemetry

import "testing"

func TestTablesWithoutLimitOrModule(t *testing.T) {
	number := func(n uint64) *uint64 { return &n }
	for _, c := range []struct {
		tables Tables
		want   map[string]bool
	}{
		{Tables{}, nil},
		{Tables{Tracked: number(7), TrackedLimit: number(0)}, map[string]bool{"kube_ipvs_conntrack_entries": true}}, // no series for a limit that does not exist
		{Tables{Connections: number(7), Buckets: number(4096)},
			map[string]bool{"kube_ipvs_connections": true, "kube_ipvs_connection_table_buckets": true}},
	} {
		cfg := testConfig()
		cfg.Tables = func() Tables { return c.tables }
		got := values(t, newMetrics(cfg))
		for _, name := range []string{"kube_ipvs_conntrack_entries", "kube_ipvs_conntrack_entries_limit", "kube_ipvs_connections", "kube_ipvs_connection_table_buckets"} {
			if _, exported := got[name]; exported != c.want[name] {
				t.Errorf("exported %t for %s, want the series %v", exported, name, c.want)
			}
		}
	}
}
