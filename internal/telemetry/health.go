package telemetry

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
)

// health says whether this node's Services are kept as the cluster wants them. kube-proxy looks only at changes that wait; we
// look at every pass: an agent that cannot read the kernel is not well, whether or not a change waits for it.
type health struct {
	bound    time.Duration
	families []inet.Family
	metrics  *metrics

	mu sync.Mutex
	// lastPass is when the last pass ended, at first when we started. lastGood is when one last succeeded; zero for never.
	lastPass, lastGood time.Time
	// failingSince is when the first pass failed after which no full pass has succeeded; zero when all is well.
	failingSince time.Time
	ready        bool
	nodeEligible bool
}

func newHealth(cfg Config, m *metrics) *health {
	return &health{bound: 2 * cfg.SyncPeriod, families: cfg.Families, metrics: m, lastPass: time.Now(), nodeEligible: true}
}

func (h *health) observe(r *agent.Report) {
	ended := r.Started.Add(r.Duration)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lastPass = ended
	if r.Err != nil {
		if h.failingSince.IsZero() {
			h.failingSince = ended
		}
		return
	}
	h.lastGood = ended
	if r.Full { // others do not look at what had failed
		h.failingSince, h.ready = time.Time{}, true
	}
}

func (h *health) setNodeEligible(eligible bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.nodeEligible = eligible
}

// healthStatus is the body of an answer: kube-proxy's fields, and why.
type healthStatus struct {
	LastUpdated  time.Time               `json:"lastUpdated"`
	CurrentTime  time.Time               `json:"currentTime"`
	NodeEligible *bool                   `json:"nodeEligible,omitempty"`
	Healthy      bool                    `json:"healthy"`
	Reason       string                  `json:"reason,omitempty"`
	Status       map[string]familyHealth `json:"status"`
}

type familyHealth struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// status is what there is to say now. The text of errors is left to the log: anybody may ask.
func (h *health) status(now time.Time) (s healthStatus, nodeEligible bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch silent, failing := now.Sub(h.lastPass), now.Sub(h.failingSince); {
	case silent > h.bound:
		s.Reason = fmt.Sprintf("no pass for %s", silent.Round(time.Second))
	case !h.failingSince.IsZero() && failing > h.bound:
		s.Reason = fmt.Sprintf("passes have been failing for %s", failing.Round(time.Second))
	}
	s.Healthy = s.Reason == ""
	s.CurrentTime, s.LastUpdated = now, h.lastGood
	s.Status = map[string]familyHealth{}
	for _, family := range h.families {
		s.Status[family.String()] = familyHealth{h.lastGood, s.Healthy}
	}
	return s, h.nodeEligible
}

func (h *health) isReady() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ready
}

func (h *health) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		s, eligible := h.status(time.Now())
		s.NodeEligible = &eligible
		answer(w, s, s.Healthy && eligible, h.metrics.healthz)
	})
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) {
		s, _ := h.status(time.Now())
		answer(w, s, s.Healthy, h.metrics.livez)
	})
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !h.isReady() {
			http.Error(w, "not ready: no full pass has succeeded yet", http.StatusServiceUnavailable)
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
