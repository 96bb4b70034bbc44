package telemetry

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// healthStatus is the body of an answer: kube-proxy's fields, and why.
type healthStatus struct {
	LastUpdated  time.Time `json:"lastUpdated"`
	CurrentTime  time.Time `json:"currentTime"`
	NodeEligible *bool     `json:"nodeEligible,omitempty"`
	Healthy      bool      `json:"healthy"`
	Reason       string    `json:"reason,omitempty"`
	// Stale says since when nothing was heard of the cluster. What is served may be outdated then, and is served all the same.
	Stale  string                  `json:"stale,omitempty"`
	Status map[string]familyHealth `json:"status"`
}

type familyHealth struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// status is healthy where there is no reason not to be.
func (h *health) status(now time.Time, reason string) healthStatus {
	good, healthy := h.lastSuccess(), reason == ""
	s := healthStatus{LastUpdated: good, CurrentTime: now, Healthy: healthy, Reason: reason, Stale: h.stale(now), Status: map[string]familyHealth{}}
	for _, family := range h.families {
		s.Status[family.String()] = familyHealth{good, healthy}
	}
	return s
}

func (h *health) handler(m *metrics) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		now, ineligible := time.Now(), h.ineligible()
		eligible := ineligible == ""
		s := h.status(now, h.unwell(now))
		s.NodeEligible = &eligible
		well := s.Healthy && eligible
		if s.Healthy {
			s.Reason = ineligible
		}
		answer(w, s, well, m.healthz)
	})
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) {
		now := time.Now()
		s := h.status(now, h.stuck(now))
		answer(w, s, s.Healthy, m.livez)
	})
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if reason := h.unready(time.Now()); reason != "" {
			http.Error(w, "not ready: "+reason, http.StatusServiceUnavailable)
			return
		}
		writeText(w, "ok")
	})
	return mux
}

func answer(w http.ResponseWriter, s healthStatus, well bool, count *prometheus.CounterVec) {
	code := http.StatusServiceUnavailable
	if well {
		code = http.StatusOK
		s.LastUpdated = s.CurrentTime // as kube-proxy answers: who looks at the age alone sees a healthy node
	}
	body, err := json.Marshal(s)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	count.WithLabelValues(statusCode(code)).Inc()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write(body) // the client may have gone
}
