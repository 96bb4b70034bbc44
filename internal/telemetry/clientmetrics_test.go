package telemetry

import (
	"net/http"
	"strings"
	"testing"

	"go.uber.org/zap"
	clientmetrics "k8s.io/client-go/tools/metrics"
)

func TestClientsAreCounted(t *testing.T) {
	s := newAPIServer(t)
	e := newTestEvents(t, s, zap.NewNop())
	m := newClientMetrics()
	hooks := m.hooks()
	// Set the hooks directly instead of calling install: the library accepts only one registration per process.
	result, latency, waited := clientmetrics.RequestResult, clientmetrics.RequestLatency, clientmetrics.RateLimiterLatency
	sent, received := clientmetrics.RequestSize, clientmetrics.ResponseSize
	clientmetrics.RequestResult, clientmetrics.RequestLatency, clientmetrics.RateLimiterLatency = hooks.RequestResult, hooks.RequestLatency, hooks.RateLimiterLatency
	clientmetrics.RequestSize, clientmetrics.ResponseSize = hooks.RequestSize, hooks.ResponseSize
	t.Cleanup(func() {
		clientmetrics.RequestResult, clientmetrics.RequestLatency, clientmetrics.RateLimiterLatency = result, latency, waited
		clientmetrics.RequestSize, clientmetrics.ResponseSize = sent, received
	})

	n := notice{topic: aboutService, problem: problemOf(web, "spec", "wrong")}
	if _, err := e.post(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	s.refuseNext(1, http.StatusForbidden)
	if _, err := e.post(t.Context(), n.opposite()); err == nil {
		t.Fatal("a refused post succeeded")
	}

	e.metrics.client = m
	got := values(t, e.metrics)
	host := strings.TrimPrefix(s.url, "http://")
	for name, want := range map[string]float64{
		"rest_client_requests_total code=200 host=" + host + " method=GET":     2,
		"rest_client_requests_total code=201 host=" + host + " method=POST":    1,
		"rest_client_requests_total code=403 host=" + host + " method=POST":    1,
		"rest_client_request_duration_seconds host=" + host + " verb=GET":      2,
		"rest_client_request_duration_seconds host=" + host + " verb=POST":     2,
		"rest_client_rate_limiter_duration_seconds host=" + host + " verb=GET": 2,
		"rest_client_request_size_bytes host=" + host + " verb=POST":           2,
		"rest_client_response_size_bytes host=" + host + " verb=GET":           2,
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
}
