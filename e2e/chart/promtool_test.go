package chart

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

type promtool struct {
	*testing.T
	dir   string
	tests []promtoolTest
}

type promtoolTest struct {
	Name     string           `json:"name"`
	Interval string           `json:"interval"`
	Series   []promtoolSeries `json:"input_series"`
	Queries  []promtoolQuery  `json:"promql_expr_test"`
}

type promtoolSeries struct {
	Series string `json:"series"`
	Values string `json:"values"`
}

type promtoolQuery struct {
	Expr     string           `json:"expr"`
	EvalTime string           `json:"eval_time"`
	Expected []promtoolSample `json:"exp_samples"`
}

type promtoolSample struct {
	Labels string  `json:"labels"`
	Value  float64 `json:"value"`
}

// newPromtool returns a promtool for the chart's rules, rendered with the given values of prometheusRule.
func newPromtool(t *testing.T, values string) *promtool {
	t.Helper()
	p := &promtool{T: t, dir: t.TempDir()}
	p.write("rules.yaml", renderedRule(t, values).Spec)
	return p
}

func (p *promtool) write(name string, content any) {
	p.Helper()
	text, err := yaml.Marshal(content)
	if err == nil {
		err = os.WriteFile(filepath.Join(p.dir, name), text, 0o600)
	}
	if err != nil {
		p.Fatal(err)
	}
}

// add adds a test that runs a query at the given minute. Each series in the result must have the value 1.
func (p *promtool) add(name string, series map[string]string, minute int, query string, want ...string) {
	test := promtoolTest{Name: name, Interval: "1m"}
	for _, s := range slices.Sorted(maps.Keys(series)) {
		test.Series = append(test.Series, promtoolSeries{s, series[s]})
	}
	p.tests = append(p.tests, test)
	p.ask(minute, query, want...)
}

func (p *promtool) ask(minute int, query string, want ...string) {
	q := promtoolQuery{Expr: query, EvalTime: (time.Duration(minute) * time.Minute).String()}
	for _, labels := range want {
		q.Expected = append(q.Expected, promtoolSample{labels, 1})
	}
	test := &p.tests[len(p.tests)-1]
	test.Queries = append(test.Queries, q)
}

func (p *promtool) run() {
	p.Helper()
	p.write("tests.yaml", map[string]any{"rule_files": []string{"rules.yaml"}, "evaluation_interval": "1m", "tests": p.tests})
	p.promtool("test", "rules", "tests.yaml")
}

func (p *promtool) promtool(args ...string) {
	p.Helper()
	if _, err := exec.LookPath("promtool"); err != nil {
		cannot := p.Skipf
		if os.Getenv("KUBE_IPVS_E2E") == "1" {
			cannot = p.Fatalf
		}
		cannot("SKIPPED, the alerts were not tested: %v (Debian's package prometheus contains it)", err)
	}
	cmd := exec.Command("promtool", args...)
	cmd.Dir = p.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		p.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
