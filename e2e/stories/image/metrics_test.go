package image

import (
	"regexp"
	"strings"
	"testing"
)

// onlyWith lists series that appear only with a setting. TestSeriesOfARealAgent in package inspect sets it.
var onlyWith = map[string]string{
	"kube_ipvs_service_connections_total": "metrics.servicePorts",
	"kube_ipvs_service_bytes_total":       "metrics.servicePorts",
}

// testMetrics requires the agent to export every metric that the chart's alerts and dashboard use. Package e2e/chart
// checks their labels.
func (s *stage) testMetrics(t *testing.T) {
	page, err := s.Nodes[0].HTTPGet("http://127.0.0.1:10249/metrics")
	if err != nil || page.Status != 200 {
		t.Fatalf("/metrics: %v, %d", err, page.Status)
	}
	query := regexp.MustCompile(`([a-zA-Z_:]+)\{job=\\?"kube-ipvs\\?"`)
	files := string(read(t, checkout+"/charts/kube-ipvs/files/alerts.yaml")) + string(read(t, checkout+"/charts/kube-ipvs/files/dashboard.json"))
	found := query.FindAllStringSubmatch(files, -1)
	if len(found) < 20 {
		t.Fatalf("found only %d series in alerts and dashboard; did their format change?", len(found))
	}
	for _, m := range found {
		series := m[1]
		if series == "up" || onlyWith[series] != "" { // Prometheus creates the series "up"
			continue
		}
		if !strings.Contains(page.Body, "\n"+series+"{") && !strings.Contains(page.Body, "\n"+series+" ") {
			t.Errorf("the alerts or the dashboard use %s, which the agent does not export:\n%s", series, page.Body)
		}
	}
}
