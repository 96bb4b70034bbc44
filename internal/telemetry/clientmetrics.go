package telemetry

import (
	"context"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientmetrics "k8s.io/client-go/tools/metrics"
)

// clientMetrics counts requests to the API server. The series have the same names, labels and buckets as in other
// Kubernetes components, because existing dashboards use them.
type clientMetrics struct {
	requests, retries           *prometheus.CounterVec
	duration, waited            *prometheus.HistogramVec
	requestBytes, responseBytes *prometheus.HistogramVec
}

var (
	clientSeconds = []float64{0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60}
	clientBytes   = []float64{64, 256, 512, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20}
)

func newClientMetrics() *clientMetrics {
	histograms := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, []string{"verb", "host"})
	}
	return &clientMetrics{
		requests: counters("rest_client_requests_total", "Requests to the API server, by HTTP status; code is <error> if there was no response.",
			"code", "method", "host"),
		retries: counters("rest_client_request_retries_total", "Retries of requests to the API server, by the HTTP status that caused them.",
			"code", "verb", "host"),
		duration: histograms("rest_client_request_duration_seconds", "Response time of the API server.", clientSeconds),
		waited: histograms("rest_client_rate_limiter_duration_seconds",
			"Time that requests waited for this agent's client-side rate limiter.", clientSeconds),
		requestBytes:  histograms("rest_client_request_size_bytes", "Size of request bodies.", clientBytes),
		responseBytes: histograms("rest_client_response_size_bytes", "Size of response bodies.", clientBytes),
	}
}

func (m *clientMetrics) register(r prometheus.Registerer) {
	r.MustRegister(m.requests, m.retries, m.duration, m.waited, m.requestBytes, m.responseBytes)
}

// install makes all Kubernetes clients in this process report to these metrics. It must run before the first request. The library keeps
// only the first registration, so a process has one Telemetry.
func (m *clientMetrics) install() { clientmetrics.Register(m.hooks()) }

func (m *clientMetrics) hooks() clientmetrics.RegisterOpts {
	return clientmetrics.RegisterOpts{
		RequestResult: countedResult{m.requests}, RequestRetry: countedRetry{m.retries},
		RequestLatency: timed{m.duration}, RateLimiterLatency: timed{m.waited},
		RequestSize: measured{m.requestBytes}, ResponseSize: measured{m.responseBytes},
	}
}

type (
	countedResult struct{ *prometheus.CounterVec }
	countedRetry  struct{ *prometheus.CounterVec }
	timed         struct{ *prometheus.HistogramVec }
	measured      struct{ *prometheus.HistogramVec }
)

func (c countedResult) Increment(_ context.Context, code, method, host string) {
	c.WithLabelValues(code, method, host).Inc()
}

func (c countedRetry) IncrementRetry(_ context.Context, code, verb, host string) {
	c.WithLabelValues(code, verb, host).Inc()
}

func (h timed) Observe(_ context.Context, verb string, u url.URL, took time.Duration) {
	h.WithLabelValues(verb, u.Host).Observe(took.Seconds())
}

func (h measured) Observe(_ context.Context, verb, host string, bytes float64) {
	h.WithLabelValues(verb, host).Observe(bytes)
}
