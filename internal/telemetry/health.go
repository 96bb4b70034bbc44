package telemetry

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// stuckAfter is how long the loop may be silent, beyond two of its periods, until it counts as stuck. The first pass with ten
// thousands of Services on a small machine takes minutes, and a restart would only begin it anew.
const stuckAfter = 5 * time.Minute

// staleAfter is how long the API server may say nothing. It speaks about once a minute, and is asked again after three.
const staleAfter = 5 * time.Minute

// health answers four questions, because four are asked:
//
//   - Are this node's Services kept as the cluster wants them? (unwell; for people, alerts and health check ports)
//   - May load balancers send traffic to this node? (ineligible; also asked by /healthz)
//   - Would a restart of the agent help? (stuck; /livez)
//   - Has the node done what the cluster asked, and does it hear what the cluster asks now? (unready; /readyz)
//
// kube-proxy looks only at changes that wait; we look at every pass: an agent that cannot read the kernel is not well, whether
// or not a change waits for it.
type health struct {
	bound    time.Duration
	families []inet.Family
	source   Source
	// nodeName is this node's; nodeOptional says that Services may be served although no Node object is known.
	nodeName     string
	nodeOptional bool

	mu sync.Mutex
	// passed says that a pass has ended, lastPass when the last one did, at first when we started.
	passed   bool
	lastPass time.Time
	// lastGood is when a pass last succeeded; zero for never.
	lastGood time.Time
	// failingSince is when the first pass failed after which no full pass has succeeded; zero when all is well.
	failingSince time.Time
	ready        bool
	// syncedAt is when the source was first seen to be complete by somebody who asked whether we are stuck.
	syncedAt time.Time
	node     *model.Node
}

// minHealthBound is enough for a pass on a busy machine, however short the period is.
const minHealthBound = 30 * time.Second

// healthBound is how long the last good pass may be ago: the next one came two times too late.
func healthBound(period time.Duration) time.Duration { return max(2*period, minHealthBound) }

func newHealth(cfg Config) *health {
	return &health{
		bound: healthBound(cfg.SyncPeriod), families: cfg.Families, source: cfg.Source,
		nodeName: cfg.Node, nodeOptional: cfg.API == nil, lastPass: time.Now(),
	}
}

func (h *health) observe(r *agent.Report) {
	ended := r.Started.Add(r.Duration)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.passed, h.lastPass, h.node = true, ended, r.Node
	h.bound = healthBound(r.Period) // which a changed configuration may change
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

// unwell says why this node's Services may not be as the cluster wants them; it is empty if they are. The text of errors is
// left to the log and to Events: anybody may ask.
func (h *health) unwell(now time.Time) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if silent := now.Sub(h.lastPass); silent > h.bound {
		return fmt.Sprintf("no pass for %s", silent.Round(time.Second))
	}
	if failing := h.failingFor(now); failing > h.bound {
		return fmt.Sprintf("passes have been failing for %s", failing.Round(time.Second))
	}
	return ""
}

// failing says whether passes have been failing for so long that somebody should look.
func (h *health) failing(now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failingFor(now) > h.bound
}

func (h *health) failingFor(now time.Time) time.Duration {
	if h.failingSince.IsZero() {
		return 0
	}
	return now.Sub(h.failingSince)
}

// ineligible says why load balancers should not use this node, however well it is; it is empty if they may. A directory of
// manifests need not have the Node. Before the first pass nothing is known, and a restart should not turn traffic away.
func (h *health) ineligible() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.node != nil && h.node.Leaving:
		return "Node " + h.nodeName + " is being deleted, or the cluster autoscaler is about to remove it"
	case h.passed && h.node == nil && !h.nodeOptional:
		return "the API server knows no Node " + h.nodeName + " (--hostname-override)"
	}
	return ""
}

// stuck says why a restart is called for; it is empty if one would not help. It would not where a source or the kernel is the
// trouble: both are asked again and again, and meanwhile the kernel serves what it was last told.
func (h *health) stuck(now time.Time) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	since := h.lastPass
	if !h.passed && h.source.Synced != nil {
		if !h.source.Synced() {
			return ""
		}
		if h.syncedAt.IsZero() {
			h.syncedAt = now
		}
		since = h.syncedAt
	}
	if silent := now.Sub(since); silent > h.bound+stuckAfter {
		return fmt.Sprintf("the loop is stuck: no pass has ended for %s", silent.Round(time.Second))
	}
	return ""
}

// unready says what the node is waiting for; it is empty if for nothing.
func (h *health) unready(now time.Time) string {
	h.mu.Lock()
	ready := h.ready
	h.mu.Unlock()
	if !ready {
		return "no full pass has succeeded yet"
	}
	return h.stale(now)
}

// stale says of what nothing has been heard for long; it is empty if of nothing, or if nobody would say anything.
func (h *health) stale(now time.Time) string {
	if h.source.LastHeard == nil {
		return ""
	}
	var stale []string
	for kind, at := range h.source.LastHeard() {
		if age := now.Sub(at); age > staleAfter {
			stale = append(stale, fmt.Sprintf("nothing heard of any %s for %s", kind, age.Round(time.Second)))
		}
	}
	if len(stale) == 0 {
		return ""
	}
	return slices.Min(stale)
}

func (h *health) lastSuccess() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lastGood
}
