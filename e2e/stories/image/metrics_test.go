package image

import (
	"regexp"
	"strings"
	"testing"
)

// onlyAfter are series that an agent has only after something happened, which did not happen here.
var onlyAfter = map[string]string{}

// testMetrics: whatever the chart's alerts and dashboard ask Prometheus for, a running agent exports. (Labels and their values
// are compared in e2e/chart.)
func (s *stage) testMetrics(t *testing.T) {
	page, err := s.Nodes[0].HTTPGet("http://127.0.0.1:10249/metrics")
	if err != nil || page.Status != 200 {
		t.Fatalf("/metrics: %v, %d", err, page.Status)
	}
	asked := regexp.MustCompile(`([a-zA-Z_:]+)\{job=\\?"kube-ipvs\\?"`)
	files := string(read(t, checkout+"/charts/kube-ipvs/files/alerts.yaml")) + string(read(t, checkout+"/charts/kube-ipvs/files/dashboard.json"))
	found := asked.FindAllStringSubmatch(files, -1)
	if len(found) < 20 {
		t.Fatalf("alerts and dashboard ask for %d series: are they written in another way now?", len(found))
	}
	for _, m := range found {
		series := m[1]
		if series == "up" || onlyAfter[series] != "" { // the first is Prometheus' own
			continue
		}
		if !strings.Contains(page.Body, "\n"+series+"{") && !strings.Contains(page.Body, "\n"+series+" ") {
			t.Errorf("alerts or dashboard ask for %s, which the agent does not export:\n%s", series, page.Body)
		}
	}
}
