package telemetry

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// healthStatus is the body of a response: kube-proxy's fields plus reasons.
type healthStatus struct {
	LastUpdated  time.Time `json:"lastUpdated"`
	CurrentTime  time.Time `json:"currentTime"`
	NodeEligible *bool     `json:"nodeEligible,omitempty"`
	Healthy      bool      `json:"healthy"`
	Reason       string    `json:"reason,omitempty"`
	// Stale is the reason why the source is stale; empty if it is not.
	Stale  string                  `json:"stale,omitempty"`
	Status map[string]familyHealth `json:"status"`
}

type familyHealth struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

func (h *health) status(now time.Time, err error) healthStatus {
	updated, healthy := h.lastSyncSuccess(), err == nil
	s := healthStatus{
		LastUpdated: updated, CurrentTime: now, Healthy: healthy, Reason: text(err), Stale: text(h.fresh(now)),
		Status: map[string]familyHealth{},
	}
	for _, family := range h.families {
		s.Status[family.String()] = familyHealth{updated, healthy}
	}
	return s
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func (h *health) handler(m *metrics) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		now, ineligible := time.Now(), h.eligible()
		eligible := ineligible == nil
		s := h.status(now, h.healthy(now))
		s.NodeEligible = &eligible
		if s.Healthy {
			s.Reason = text(ineligible)
		}
		respond(w, s, s.Healthy && eligible, m.healthz)
	})
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) {
		now := time.Now()
		s := h.status(now, h.alive(now))
		respond(w, s, s.Healthy, m.livez)
	})
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := h.ready(time.Now()); err != nil {
			http.Error(w, "not ready: "+err.Error(), http.StatusServiceUnavailable)
			return
		}
		writeText(w, "ok")
	})
	return mux
}

func respond(w http.ResponseWriter, s healthStatus, ok bool, count *prometheus.CounterVec) {
	code := http.StatusServiceUnavailable
	if ok {
		code = http.StatusOK
		s.LastUpdated = s.CurrentTime // as kube-proxy does, for clients that check only the age
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
	_, _ = w.Write(body) // the client may have disconnected
}
