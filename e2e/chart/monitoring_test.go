package chart

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	corev1 "k8s.io/api/core/v1"
)

// metric is a metric in docs/metrics.md. labels contains the values of each label, or none if they are not fixed.
type metric struct {
	kind   string
	labels map[string][]string
}

// targetLabels are the labels that Prometheus adds, and a label for the cluster.
var targetLabels = []string{"job", "instance", "namespace", "pod", "node", "cluster"}

// exported returns the metrics in docs/metrics.md. Tests of internal/telemetry keep that page up to date.
func exported(t *testing.T) map[string]metric {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docs/metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]metric{"up": {kind: "gauge"}} // created by Prometheus
	row := regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| ([a-z]+) \\| (.*?) \\| ")
	for _, m := range row.FindAllStringSubmatch(string(text), -1) {
		all[m[1]] = metric{kind: m[2], labels: documentedLabels(m[3])}
	}
	if len(all) < 10 {
		t.Fatalf("docs/metrics.md has only %d metrics; did the format of its table change?", len(all))
	}
	for name, m := range runtimeMetrics(t) {
		all[name] = m
	}
	return all
}

// documentedLabels parses "`kind`: full, touched; `result`: failed, ok".
func documentedLabels(cell string) map[string][]string {
	labels := map[string][]string{}
	for part := range strings.SplitSeq(cell, ";") {
		name, list, _ := strings.Cut(strings.TrimSpace(part), ":")
		var values []string
		for value := range strings.SplitSeq(list, ",") {
			if value = strings.TrimSpace(value); value != "" {
				values = append(values, value)
			}
		}
		labels[strings.Trim(name, "`")] = values
	}
	return labels
}

// runtimeMetrics returns the metrics of every Go program.
func runtimeMetrics(t *testing.T) map[string]metric {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]metric{}
	for _, f := range families {
		all[f.GetName()] = metric{kind: strings.ToLower(f.GetType().String())}
	}
	return all
}

// TestQueriesUseExportedMetrics catches typos: an alert on a metric that does not exist never fires.
func TestQueriesUseExportedMetrics(t *testing.T) {
	metrics := exported(t)
	for place, q := range queries(t) {
		for _, err := range append(checkQuery(q.text, metrics), checkTexts(q, metrics)...) {
			t.Errorf("%s: %v\n%s", place, err, q.text)
		}
	}
}

// query is a PromQL query, with the texts that are shown next to its result. The texts contain labels, such as
// {{ $labels.node }} or {{node}}.
type query struct {
	text  string
	texts []string
}

// queries returns the queries of the alerts and the dashboard. The keys describe where each query is.
func queries(t *testing.T) map[string]query {
	t.Helper()
	objects := decode(t, mustRender(t, parse(t, everything)).Manifest)
	all := map[string]query{}
	for _, group := range only[*monitoringv1.PrometheusRule](t, objects).Spec.Groups {
		for _, rule := range group.Rules {
			all["alert "+rule.Alert] = query{rule.Expr.String(), slices.Collect(maps.Values(rule.Annotations))}
			if rule.Annotations["summary"] == "" || rule.Annotations["description"] == "" || rule.Labels["severity"] == "" || rule.For == nil {
				t.Errorf("alert %s lacks a summary, a description, a severity or a duration", rule.Alert)
			}
		}
	}
	for _, panel := range readDashboard(t).Panels {
		if panel.Description == "" || len(panel.Targets) == 0 {
			t.Errorf("panel %q lacks a description or queries", panel.Title)
		}
		if len(panel.Panels) > 0 {
			t.Errorf("panel %q is a collapsed row, which this test does not search for queries", panel.Title)
		}
		for _, target := range panel.Targets {
			all[fmt.Sprintf("panel %q, query %s", panel.Title, target.RefID)] = query{target.Expr, []string{target.LegendFormat}}
		}
	}
	for _, v := range readDashboard(t).Templating.List {
		if v.Type == "query" {
			all["variable "+v.Name] = query{text: v.Query}
		}
	}
	if len(all) < 20 {
		t.Fatalf("only %d queries found", len(all))
	}
	return all
}

type dashboard struct {
	Panels []struct {
		Title, Description string
		GridPos            struct{ X, Y, W, H int }
		Panels             []struct{} // of a collapsed row
		Targets            []struct{ Expr, RefID, LegendFormat string }
	}
	Templating struct {
		List []struct{ Name, Type, Query string }
	}
}

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	var d dashboard
	for _, o := range decode(t, mustRender(t, parse(t, everything)).Manifest) {
		if cm, ok := o.(*corev1.ConfigMap); ok && cm.Data["kube-ipvs.json"] != "" {
			if err := json.Unmarshal([]byte(cm.Data["kube-ipvs.json"]), &d); err != nil {
				t.Fatal(err)
			}
			return d
		}
	}
	t.Fatal("no ConfigMap contains the dashboard")
	return d
}

// TestPanelsDoNotOverlap also checks that panels stay within Grafana's 24 columns.
func TestPanelsDoNotOverlap(t *testing.T) {
	panels := readDashboard(t).Panels
	for i, p := range panels {
		a := p.GridPos
		if a.W == 0 || a.H == 0 || a.X+a.W > 24 {
			t.Errorf("panel %q: place %+v", p.Title, a)
		}
		for _, q := range panels[:i] {
			if b := q.GridPos; a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				t.Errorf("panels %q and %q overlap", p.Title, q.Title)
			}
		}
	}
}

var (
	selector = regexp.MustCompile(`([a-zA-Z_:][a-zA-Z0-9_:]*)\s*\{([^}]*)\}`)
	matcher  = regexp.MustCompile(`([a-zA-Z_][a-zA-Z0-9_]*)\s*(=~|!~|!=|=)\s*"([^"]*)"`)
	grouping = regexp.MustCompile(`\b(?:by|without)\s*\(([^)]*)\)`)
	duration = regexp.MustCompile(`\[[^]]*\]`)
	word     = regexp.MustCompile(`[a-zA-Z_:][a-zA-Z0-9_:]*`)
)

// words lists the PromQL and Grafana keywords that these queries use.
var words = []string{
	"absent", "and", "clamp_min", "count", "histogram_quantile", "increase", "label_values", "max", "or", "quantile", "rate",
	"slo", "sum", "time", "topk", "vector",
}

// checkQuery looks for unexported metrics, labels and label values.
func checkQuery(query string, metrics map[string]metric) (errs []error) {
	labels := slices.Clone(targetLabels)
	for _, s := range selector.FindAllStringSubmatch(query, -1) {
		m, ok := metrics[base(s[1], metrics)]
		if !ok {
			errs = append(errs, fmt.Errorf("unknown metric %s", s[1]))
			continue
		}
		if strings.HasSuffix(s[1], "_bucket") {
			labels = append(labels, "le")
		}
		for label := range m.labels {
			labels = append(labels, label)
		}
		errs = append(errs, checkMatchers(s[1], s[2], m)...)
	}
	rest := selector.ReplaceAllString(query, "")
	for _, g := range grouping.FindAllStringSubmatch(rest, -1) {
		for _, label := range word.FindAllString(g[1], -1) {
			if !slices.Contains(labels, label) {
				errs = append(errs, fmt.Errorf("none of these metrics has a label %s", label))
			}
		}
	}
	rest = duration.ReplaceAllString(grouping.ReplaceAllString(rest, ""), "")
	for _, w := range word.FindAllString(rest, -1) {
		if !slices.Contains(words, w) && !slices.Contains(labels, w) {
			errs = append(errs, fmt.Errorf("%s is neither a known function nor a metric with a job", w))
		}
	}
	return errs
}

// base returns the metric of a series.
func base(series string, metrics map[string]metric) string {
	for _, suffix := range []string{"_bucket", "_count", "_sum"} {
		if name, cut := strings.CutSuffix(series, suffix); cut && metrics[name].kind == "histogram" {
			return name
		}
	}
	return series
}

func checkMatchers(series, text string, m metric) (errs []error) {
	for _, found := range matcher.FindAllStringSubmatch(text, -1) {
		label, operator, value := found[1], found[2], found[3]
		if slices.Contains(targetLabels, label) {
			continue
		}
		known, ok := m.labels[label]
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("%s has no label %s", series, label))
		case len(known) == 0: // the label's values are not fixed
		case strings.HasSuffix(operator, "~"):
			errs = append(errs, checkPattern(series, label, value, known)...)
		case !slices.Contains(known, value):
			errs = append(errs, fmt.Errorf("%s never has %s=%q, but %s", series, label, value, strings.Join(known, ", ")))
		}
	}
	if !strings.Contains(text, `job="kube-ipvs"`) {
		errs = append(errs, fmt.Errorf("%s is queried without job=\"kube-ipvs\", but kube-proxy has metrics with the same names", series))
	}
	return errs
}

// checkPattern checks that every alternative matches a value.
func checkPattern(series, label, pattern string, known []string) (errs []error) {
	for alternative := range strings.SplitSeq(pattern, "|") {
		fits, err := regexp.Compile("^(?:" + alternative + ")$")
		if err != nil {
			errs = append(errs, err)
		} else if !slices.ContainsFunc(known, fits.MatchString) {
			errs = append(errs, fmt.Errorf("%s never has %s=~%q, but %s", series, label, alternative, strings.Join(known, ", ")))
		}
	}
	return errs
}

var (
	by         = regexp.MustCompile(`\bby\s*\(([^)]*)\)`)
	labelShown = regexp.MustCompile(`\{\{\s*(?:\$labels\.)?([a-zA-Z_]+)\s*\}\}`)
)

// checkTexts checks that the result has every label that the texts use. Prometheus and Grafana show nothing for a missing
// label.
func checkTexts(q query, metrics map[string]metric) (errs []error) {
	has := slices.Clone(targetLabels)
	for _, s := range selector.FindAllStringSubmatch(q.text, -1) {
		has = slices.AppendSeq(has, maps.Keys(metrics[base(s[1], metrics)].labels))
	}
	if grouped := by.FindStringSubmatch(q.text); grouped != nil {
		has = word.FindAllString(grouped[1], -1)
	}
	for _, text := range q.texts {
		for _, shown := range labelShown.FindAllStringSubmatch(text, -1) {
			if !slices.Contains(has, shown[1]) {
				errs = append(errs, fmt.Errorf("%q shows the label %s, which the result does not have", text, shown[1]))
			}
		}
	}
	return errs
}

func TestCheckQueryFindsMistakes(t *testing.T) {
	metrics := exported(t)
	for query, want := range map[string]string{
		`kube_ipvs_nothing{job="kube-ipvs"}`:                                 "unknown metric kube_ipvs_nothing",
		`kube_ipvs_services`:                                                 "neither a known function nor a metric with a job",
		`kube_ipvs_services{job="kube-proxy"}`:                               "without job",
		`kube_ipvs_operations_total{job="kube-ipvs", result="fail"}`:         "never has result=\"fail\"",
		`kube_ipvs_services{job="kube-ipvs", kind="x"}`:                      "has no label kind",
		`sum by (family) (kube_ipvs_services{job="kube-ipvs"})`:              "none of these metrics has a label family",
		`kubeproxy_sync_proxy_rules_duration_seconds_total{job="kube-ipvs"}`: "unknown metric",
		`kube_ipvs_operations_total{job="kube-ipvs", result=~"failed|bad"}`:  "never has result=~\"bad\"",
		`summ(kube_ipvs_services{job="kube-ipvs"})`:                          "summ is neither",
	} {
		errs := checkQuery(query, metrics)
		if len(errs) != 1 || !strings.Contains(errs[0].Error(), want) {
			t.Errorf("%s: %v, want one error that contains %q", query, errs, want)
		}
	}
}

func TestCheckTextsFindsMistakes(t *testing.T) {
	metrics := exported(t)
	for text, mistaken := range map[string]bool{
		`sum by (kind) (kube_ipvs_operations_total{job="kube-ipvs"})`: true,
		`sum by (verb) (kube_ipvs_operations_total{job="kube-ipvs"})`: false,
		`kube_ipvs_services{job="kube-ipvs"}`:                         true,
	} {
		if errs := checkTexts(query{text, []string{"{{ $labels.verb }}"}}, metrics); (len(errs) > 0) != mistaken {
			t.Errorf("wrong result for %s and a text that shows the label verb: %v", text, errs)
		}
	}
}
