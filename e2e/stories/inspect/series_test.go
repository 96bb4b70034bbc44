package inspect

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

var (
	ofAPI    = regexp.MustCompile(`^(rest_client|kube_ipvs_source|kube_ipvs_snapshot)_`)
	standard = regexp.MustCompile(`^(go|process|promhttp)_|^kube_ipvs_build_info$`)
)

// TestSeriesOfARealAgent: the series with which the alerts and the dashboard are tested (internal/telemetry/testdata) have the names and the
// labels of an agent on a real kernel. Without an API server, the agent lacks those about it.
func TestSeriesOfARealAgent(t *testing.T) {
	s := newStage(t)
	recorded, err := os.ReadFile("../../../internal/telemetry/testdata/metrics.golden")
	if err != nil {
		t.Fatal(err)
	}
	var page cluster.Page
	cluster.Eventually(t, patience, "the agent's metrics", func() (err error) {
		if page, err = s.node.HTTPGet("http://127.0.0.1:10249/metrics"); err == nil && page.Status != 200 {
			err = fmt.Errorf("status %d", page.Status)
		}
		return err
	})
	want, have := labelsOf(string(recorded)), labelsOf(page.Body)
	for name, sets := range want {
		if _, exists := have[name]; !exists && !ofAPI.MatchString(name) {
			t.Errorf("the agent does not export %s", name)
		}
		for _, labels := range have[name] {
			if !slices.Contains(sets, labels) {
				t.Errorf("%s has the labels %q; in the tests it has %q", name, labels, sets)
			}
		}
	}
	for name := range have {
		if _, exists := want[name]; !exists && !standard.MatchString(name) {
			t.Errorf("the agent exports %s, which the tests lack", name)
		}
	}
}

// labelsOf maps the names of the series on a page to their sets of labels.
func labelsOf(page string) map[string][]string {
	label := regexp.MustCompile(`([a-z_]+)="(?:[^"\\]|\\.)*"`)
	all := map[string][]string{}
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "#") || strings.TrimSpace(line) == "" {
			continue
		}
		name, _, _ := strings.Cut(line[:strings.LastIndex(line, " ")], "{")
		var labels []string
		for _, m := range label.FindAllStringSubmatch(line, -1) {
			labels = append(labels, m[1])
		}
		slices.Sort(labels)
		if set := strings.Join(labels, ","); !slices.Contains(all[name], set) {
			all[name] = append(all[name], set)
		}
	}
	return all
}
