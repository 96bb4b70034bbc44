package chart

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
)

// TestRunbook: the runbook has a heading for each alert, and no other heading.
func TestRunbook(t *testing.T) {
	var named []string
	for _, m := range regexp.MustCompile(`(?m)^## (KubeIPVS\w+)$`).FindAllStringSubmatch(guide(t, "alerts.md"), -1) {
		named = append(named, m[1])
	}
	want := slices.Sorted(maps.Keys(allRules(t, "")))
	if d := cmp.Diff(want, slices.Sorted(slices.Values(named))); d != "" {
		t.Errorf("alerts without a heading in docs/alerts.md (-), and headings without an alert (+):\n%s", d)
	}
	for name, rule := range allRules(t, "") {
		if _, anchor, _ := strings.Cut(rule.Annotations["runbook_url"], "docs/alerts.md#"); anchor != strings.ToLower(name) {
			t.Errorf("%s: runbook_url %q", name, rule.Annotations["runbook_url"])
		}
	}
}

// allRules returns all alerts, including those that are off by default. more contains additional values of
// prometheusRule.
func allRules(t *testing.T, more string) map[string]monitoringv1.Rule {
	t.Helper()
	all := map[string]monitoringv1.Rule{}
	for _, group := range renderedRule(t, more).Spec.Groups {
		for _, rule := range group.Rules {
			if rule.Alert != "" {
				all[rule.Alert] = rule
			}
		}
	}
	return all
}

func renderedRule(t *testing.T, more string) *monitoringv1.PrometheusRule {
	t.Helper()
	v := parse(t, "metrics: {bindAddress: '::', prometheusRule: {enabled: true, alerts: {KubeIPVSRules: {enabled: true}}, "+more+"}}")
	return only[*monitoringv1.PrometheusRule](t, decode(t, mustRender(t, v).Manifest))
}

// alertCase contains a fault on one node that must raise the alert, and a smaller one that must not. fires and near
// map the agent's series to one value per minute, in promtool's notation.
type alertCase struct {
	fires, near map[string]string
	// labels are the alert's labels besides node and cluster. cluster is true for an alert without a node.
	labels  string
	cluster bool
}

// verdictAt is the minute at which the alerts are checked. The series in the cases continue beyond it.
const verdictAt = 100

var alertCases = map[string]alertCase{
	"KubeIPVSAgentDown": {
		fires: map[string]string{"up": "0+0x200"},
		near:  map[string]string{"up": "1+0x90 0+0x50"}, // down for nine minutes
	},
	"KubeIPVSOutOfSync": {
		fires: map[string]string{"kube_ipvs_last_full_sync_timestamp_seconds": "0+0x200"}, // never synced
		near: map[string]string{ // synced less than two intervals ago
			"kube_ipvs_last_full_sync_timestamp_seconds": "0+0x200", "kube_ipvs_full_sync_interval_seconds": "4000+0x200",
		},
	},
	"KubeIPVSOperationsFailing": {
		fires:  map[string]string{`kube_ipvs_operations_total{kind="server",result="failed",verb="create"}`: "0+1x200"},
		near:   map[string]string{`kube_ipvs_operations_total{kind="server",result="failed",verb="create"}`: "0+0x92 9+0x50"}, // failed once
		labels: `kind="server"`,
	},
	"KubeIPVSDrift": {
		fires: map[string]string{`kube_ipvs_drift_repairs_total{kind="missing",part="sets"}`: "0+1x200"},
		near:  map[string]string{`kube_ipvs_drift_repairs_total{kind="missing",part="sets"}`: "0+0x50 1+1x50"}, // repaired for 50 minutes
	},
	"KubeIPVSForeignServers": {
		fires: map[string]string{"kube_ipvs_foreign_servers": "1+0x200"},
		near:  map[string]string{"kube_ipvs_foreign_servers": "0+0x90 1+0x50"},
	},
	"KubeIPVSProblems": {
		fires:  map[string]string{`kube_ipvs_problems{kind="service"}`: "2+0x200"},
		near:   map[string]string{`kube_ipvs_problems{kind="service"}`: "0+0x80 2+0x50"},
		labels: `kind="service"`, cluster: true,
	},
	"KubeIPVSSyncSlow": {
		fires: map[string]string{
			`kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family="IPv4",le="16.384"}`: "0+1x200",
			`kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family="IPv4",le="+Inf"}`:   "0+1x200",
		},
		near: map[string]string{ // all syncs took less than nine seconds
			`kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family="IPv4",le="8.192"}`:  "0+1x200",
			`kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family="IPv4",le="16.384"}`: "0+1x200",
			`kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family="IPv4",le="+Inf"}`:   "0+1x200",
		},
	},
	"KubeIPVSSourceStale": {
		fires: map[string]string{`kube_ipvs_source_last_heard_timestamp_seconds{kind="endpointslice"}`: "0+60x80 4800+0x100"},
		near:  map[string]string{`kube_ipvs_source_last_heard_timestamp_seconds{kind="endpointslice"}`: "0+60x92 5520+0x100"}, // silent for eight minutes
	},
	"KubeIPVSConfigurationRefused": {
		fires: map[string]string{"kube_ipvs_configuration_refused": "1+0x200"},
		near:  map[string]string{"kube_ipvs_configuration_refused": "0+0x90 1+0x50"},
	},
	"KubeIPVSIPTablesStuck": {
		fires:  map[string]string{`kube_ipvs_stuck_since_timestamp_seconds{part="ip6tables"}`: "0+0x90 5400+0x50"},
		near:   map[string]string{`kube_ipvs_stuck_since_timestamp_seconds{part="ip6tables"}`: "0+0x96 5760+0x50"},
		labels: `part="ip6tables"`,
	},
	"KubeIPVSDataPlane": {
		fires:  map[string]string{`kube_ipvs_data_plane{data_plane="ipvs"}`: "_x200", `kube_ipvs_data_plane{data_plane="nftables"}`: "1+0x200"},
		near:   map[string]string{`kube_ipvs_data_plane{data_plane="ipvs"}`: "1+0x200"},
		labels: `data_plane="nftables"`,
	},
	"KubeIPVSRules": {
		fires:  map[string]string{`kube_ipvs_rules{rules="iptables"}`: "_x200", `kube_ipvs_rules{rules="nftables"}`: "1+0x200"},
		near:   map[string]string{`kube_ipvs_rules{rules="iptables"}`: "1+0x200"},
		labels: `rules="nftables"`,
	},
	"KubeIPVSConntrackNearlyFull": {
		fires: map[string]string{"kube_ipvs_conntrack_entries": "220000+0x200", "kube_ipvs_conntrack_entries_limit": "262144+0x200"},
		near:  map[string]string{"kube_ipvs_conntrack_entries": "200000+0x200", "kube_ipvs_conntrack_entries_limit": "262144+0x200"},
	},
	"KubeIPVSConnectionTableOverfull": {
		fires: map[string]string{"kube_ipvs_connections": "65537+0x200", "kube_ipvs_connection_table_buckets": "4096+0x200"},
		near:  map[string]string{"kube_ipvs_connections": "65536+0x200", "kube_ipvs_connection_table_buckets": "4096+0x200"},
	},
}

// TestAlertsFire: each alert fires for its fault, but not for a smaller one. One of two nodes has the fault. If
// the database contains two clusters, only one of them has the fault.
func TestAlertsFire(t *testing.T) {
	agent := withTarget(recorded(t))
	for name, label := range map[string]string{"one cluster": "", "two clusters in one database": "cluster"} {
		t.Run(name, func(t *testing.T) {
			rules := allRules(t, "clusterLabel: '"+label+"'")
			p := newPromtool(t, "clusterLabel: '"+label+"'")
			for alert := range rules {
				if _, ok := alertCases[alert]; !ok && alert != "KubeIPVSDown" { // TestAlertsOfClustersWithoutAgents covers this alert
					t.Errorf("%s has no case", alert)
				}
			}
			for alert, c := range alertCases {
				labels := []string{`alertname="` + alert + `"`}
				if label != "" {
					labels = append(labels, `cluster="blue"`)
				}
				if !c.cluster {
					labels = append(labels, `node="node-1"`)
				}
				if c.labels != "" {
					labels = append(labels, c.labels)
				}
				p.add(alert+" fires", database(t, agent, label, c.fires), verdictAt, firing, "{"+strings.Join(labels, ",")+"}")
				p.add(alert+" does not fire", database(t, agent, label, c.near), verdictAt, firing)
			}
			p.run()
		})
	}
}

// firing is a query for the firing alerts.
const firing = `count without (__name__, alertstate, severity, job, instance, namespace, pod) (ALERTS{alertstate="firing"})`

// withTarget adds the series that Prometheus itself creates for a target.
func withTarget(agent map[string]float64) map[string]float64 {
	agent["up"] = 1
	return agent
}

// database returns the series of two nodes, the first of which has a fault. If label is not empty, it adds a second
// cluster without faults.
func database(t *testing.T, agent map[string]float64, label string, fault map[string]string) map[string]string {
	t.Helper()
	series := map[string]string{}
	clusters := []string{""}
	if label != "" {
		clusters = []string{"blue", "green"}
	}
	for i, name := range clusters {
		for node := 1; node <= 2; node++ {
			target := fmt.Sprintf(`instance="192.0.2.%d:10249",job="kube-ipvs",namespace="kube-system",node="node-%d",pod="kube-ipvs-%d"`, node, node, node)
			if label != "" {
				target += fmt.Sprintf(`,%s=%q`, label, name)
			}
			values := healthy(agent)
			if i == 0 && node == 1 {
				for changed, notation := range fault {
					if !exports(agent, changed) {
						t.Errorf("the agent does not export %s", changed)
					}
					values[changed] = notation
				}
			}
			for s, notation := range values {
				series[labeled(s, target)] = notation
			}
		}
	}
	return series
}

// healthy returns the values of an agent that keeps working. Its timestamps advance, but its counters do not.
func healthy(agent map[string]float64) map[string]string {
	values := map[string]string{}
	for s, v := range agent {
		name, _, _ := strings.Cut(s, "{")
		switch {
		case strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "rest_client_"): // unused
		case strings.HasSuffix(name, "_timestamp_seconds") && v > 0:
			values[s] = "0+60x200"
		default:
			values[s] = fmt.Sprintf("%g+0x200", v)
		}
	}
	return values
}

// exports reports whether the agent has this series, regardless of label values.
func exports(agent map[string]float64, series string) bool {
	value := regexp.MustCompile(`"[^"]*"`)
	for s := range agent {
		if value.ReplaceAllString(s, "") == value.ReplaceAllString(series, "") {
			return true
		}
	}
	return false
}

func labeled(series, labels string) string {
	name, own, has := strings.Cut(strings.TrimSuffix(series, "}"), "{")
	if has {
		labels = own + "," + labels
	}
	return name + "{" + labels + "}"
}

func up(clusterName string) string {
	return `up{cluster="` + clusterName + `",instance="192.0.2.1:10249",job="kube-ipvs",node="node-1"}`
}

func TestAlertsOfClustersWithoutAgents(t *testing.T) {
	const down = `{alertname="KubeIPVSDown"}`
	one := newPromtool(t, "")
	nodes := func(first, second string) map[string]string {
		return map[string]string{`up{job="kube-ipvs",node="node-1"}`: first, `up{job="kube-ipvs",node="node-2"}`: second}
	}
	const agents = `{alertname="KubeIPVSAgentDown",node="node-1"}`
	one.add("no agent is up", nodes("0+0x200", "0+0x200"), verdictAt, firing, down, agents, strings.Replace(agents, "-1", "-2", 1))
	one.add("one is", nodes("0+0x200", "1+0x200"), verdictAt, firing, agents)
	one.add("Prometheus has no target", map[string]string{`up{job="other"}`: "1+0x200"}, verdictAt, firing, down)
	one.run()

	several := newPromtool(t, "clusterLabel: cluster")
	lost := map[string]string{up("blue"): "1+0x2000", up("green"): "1+0x20 _x2000"}
	several.add("the series of a cluster end", lost, verdictAt, firing, `{alertname="KubeIPVSDown",cluster="green"}`)
	several.add("for less than 15 minutes", lost, 30, firing)
	several.add("for more than a day", lost, 26*60, firing) // docs/alerts.md describes this limit
	several.run()

	listed := newPromtool(t, `clusterLabel: cluster, clusters: 'kube_daemonset_status_desired_number_scheduled{daemonset="kube-ipvs"} > 0'`)
	wanted := func(name, number string) string {
		return fmt.Sprintf(`kube_daemonset_status_desired_number_scheduled{cluster=%q,daemonset="kube-ipvs",namespace=%q}`, name, number)
	}
	listed.add("a cluster never had an agent", map[string]string{
		wanted("blue", "a"): "3+0x200", up("blue"): "1+0x200", wanted("red", "a"): "3+0x200", wanted("gray", "a"): "0+0x200",
	}, verdictAt, firing, `{alertname="KubeIPVSDown",cluster="red"}`)
	listed.run()
}

// TestKubeProxyDown tests the alert from kubernetes-mixin.
func TestKubeProxyDown(t *testing.T) {
	const mixin = `absent(up{job="kube-proxy"} == 1)`
	agents := map[string]string{`up{job="kube-ipvs",node="node-1"}`: "1+0x200"}
	plain := newPromtool(t, "")
	plain.add("it fires where no kube-proxy runs", agents, verdictAt, mixin, "{}")
	plain.run()
	recording := newPromtool(t, "kubeProxyUp: true")
	recording.add("agents count as kube-proxy", agents, verdictAt, mixin)
	recording.add("agents that are down do not", map[string]string{`up{job="kube-ipvs",node="node-1"}`: "0+0x200"}, verdictAt, mixin, "{}")
	recording.run()
}

// variables sets the dashboard's variables.
var variables = strings.NewReplacer("$__rate_interval", "5m", "$slo", "1", "$cluster", ".*", "$node", ".*", "$namespace", ".*", "$service", ".*")

// TestDashboardShowsData: the panels show the traffic of working agents. Queries that end in "> 0" show only faults.
func TestDashboardShowsData(t *testing.T) {
	agent := withTarget(recorded(t))
	for _, label := range []string{"", "cluster"} {
		series := database(t, agent, label, nil)
		for s, values := range series {
			if name, _, _ := strings.Cut(s, "{"); strings.HasSuffix(name, "_total") || strings.HasSuffix(name, "_bucket") {
				series[s] = strings.Replace(values, "+0x", "+60x", 1)
			}
		}
		p := newPromtool(t, "")
		p.add("dashboard", series, verdictAt, "vector(1)", "{}")
		for place, q := range queries(t) {
			if strings.HasPrefix(place, "panel") && !strings.HasSuffix(q.text, "> 0") {
				p.ask(verdictAt, "clamp_max(count("+variables.Replace(q.text)+"), 1)", "{}")
			}
		}
		p.run()
	}
}

func TestQueriesParse(t *testing.T) {
	p := newPromtool(t, "clusterLabel: cluster")
	p.promtool("check", "rules", "rules.yaml")
	var rules []map[string]string
	all := queries(t)
	for _, place := range slices.Sorted(maps.Keys(all)) {
		text := variables.Replace(all[place].text)
		if inner, ok := strings.CutPrefix(text, "label_values("); ok {
			text = inner[:strings.LastIndexByte(inner, ',')]
		}
		rules = append(rules, map[string]string{"record": "x", "expr": text})
	}
	p.write("queries.yaml", map[string]any{"groups": []any{map[string]any{"name": "queries", "rules": rules}}})
	p.promtool("check", "rules", "--lint=none", "queries.yaml")
}

func TestAlertTexts(t *testing.T) {
	rule := allRules(t, `clusterLabel: k8s_cluster, additionalAlertLabels: {team: network}, additionalAlertAnnotations: {chat: "#network"},
runbookURL: "https://wiki.example/", alerts: {KubeIPVSRules: {enabled: true}, KubeIPVSSyncSlow: {threshold: 2.5}}`)["KubeIPVSSyncSlow"]
	want := monitoringv1.Rule{
		Alert: "KubeIPVSSyncSlow", Expr: rule.Expr, For: rule.For, Labels: map[string]string{"severity": "warning", "team": "network"},
		Annotations: map[string]string{
			"summary":     "Node {{ $labels.node }} of cluster {{ $labels.k8s_cluster }} takes longer than 2.5 seconds to apply changes to Services.",
			"description": rule.Annotations["description"], "runbook_url": "https://wiki.example/kubeipvssyncslow", "chat": "#network",
		},
	}
	if d := cmp.Diff(want, rule); d != "" {
		t.Errorf("alert (-want +got):\n%s", d)
	}
	if expr := rule.Expr.String(); !strings.Contains(expr, "sum by (k8s_cluster, node, le)") || !strings.HasSuffix(expr, "> 2.5") {
		t.Errorf("query %s", expr)
	}
}
