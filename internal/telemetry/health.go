package telemetry

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// If no sync ends for two periods plus stuckAfter, the loop counts as stuck. On a small machine, the first sync of
// ten thousand Services takes minutes, and a restart would only start it over.
const stuckAfter = 5 * time.Minute

// staleAfter is how long a watch can be silent before its data count as stale. The API server sends a bookmark about once a
// minute, and the agent renews a watch after three minutes without messages.
const staleAfter = 5 * time.Minute

// health answers four questions. Each check returns nil for yes, or an error that states the reason for no.
//
//   - healthy: does the agent keep this node's Services up to date? For operators, alerts and health check ports.
//   - eligible: may load balancers send traffic to this node? Part of /healthz.
//   - alive: is the loop running? If not, a restart helps. For /livez.
//   - ready: has the node synced completely, and does it receive changes? For /readyz.
//
// kube-proxy considers only pending changes. kube-ipvs considers every sync: an agent that cannot read the kernel is unhealthy
// even without pending changes.
type health struct {
	bound    time.Duration
	families []inet.Family
	source   Source
	// nodeOptional is true with manifests, which need not contain this node's Node object.
	nodeName     string
	nodeOptional bool
	// serving is true if the kernel was already serving the state of an earlier agent when this agent started.
	serving bool

	mu sync.Mutex
	// syncEnded is true after the first sync. lastSync is the end of the last sync or the start of the last quick
	// check; initially, it is the start of the agent.
	syncEnded   bool
	lastSync    time.Time
	lastSuccess time.Time
	// failingSince is the time of the first failure after the last successful sync; zero for none. Only a
	// successful full sync resets it.
	failingSince time.Time
	fullSynced   bool
	// sourceSyncedAt is when alive first found the source synced.
	sourceSyncedAt time.Time
	stuck          []kernel.StuckError
	node           *model.Node
	// waiting is the reason why the agent has not started its loop yet; nil if it has.
	waiting error
}

// minHealthBound allows time for a sync on a busy machine, however short the period is.
const minHealthBound = 30 * time.Second

// healthBound is the maximum age of the last successful sync: two missed periods.
func healthBound(period time.Duration) time.Duration { return max(2*period, minHealthBound) }

func newHealth(cfg Config) *health {
	return &health{
		bound: healthBound(cfg.Period), families: cfg.Families, source: cfg.Source,
		nodeName: cfg.Node, nodeOptional: cfg.API == nil, serving: cfg.Serving, lastSync: time.Now(),
	}
}

func (h *health) observe(r *agent.Report) {
	ended := r.Started.Add(r.Duration)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.syncEnded, h.lastSync, h.node = true, ended, r.Node
	h.bound = healthBound(r.Period) // a reload can change the period
	h.stuck = r.Stuck
	if r.Err != nil {
		if h.failingSince.IsZero() {
			h.failingSince = ended
		}
		return
	}
	if r.Waiting != nil { // neither a success nor a failure: a later sync reports the result
		return
	}
	h.lastSuccess = ended
	if r.Complete() { // an incremental sync does not retry what failed before
		h.failingSince, h.fullSynced = time.Time{}, true
	}
}

// checked records that the loop works and the kernel responds, although no sync was necessary.
func (h *health) checked(at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if at.After(h.lastSync) {
		h.lastSync = at
	}
}

// healthy returns an error if this node's Services may be out of date. The error omits the cause, because anyone with access to the
// port can read it. The cause is in the log and in Events.
func (h *health) healthy(now time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	limit := h.bound
	if h.serving && !h.syncEnded {
		limit += stuckAfter // the first sync may take minutes, and meanwhile the kernel serves the previous state
	}
	if age := now.Sub(h.lastSync); age > limit {
		if h.waiting != nil {
			return h.waiting
		}
		return fmt.Errorf("no sync for %s", age.Round(time.Second))
	}
	if stuck := h.stuckFor(now); len(stuck) > 0 {
		return errors.New(strings.Join(stuck, ", "))
	}
	failing := h.failingFor(now)
	if failing <= h.bound {
		return nil
	}
	return fmt.Errorf("syncs have been failing for %s", failing.Round(time.Second))
}

func (h *health) stuckFor(now time.Time) (texts []string) {
	for _, stuck := range h.stuck {
		if age := now.Sub(stuck.Since); age > h.bound {
			texts = append(texts, fmt.Sprintf("%s has not worked for %s", stuck.Part, age.Round(time.Second)))
		}
	}
	return texts
}

// failing reports whether syncs have failed for longer than retries should take.
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

// eligible returns an error if load balancers should not use this node, even if it is healthy. Before the first sync the Node is
// unknown and the node counts as eligible: a restart of the agent must not divert traffic.
func (h *health) eligible() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.node != nil && h.node.Leaving:
		return fmt.Errorf("Node %s is being deleted, or the cluster autoscaler is about to remove it", h.nodeName)
	case h.syncEnded && h.node == nil && !h.nodeOptional:
		return fmt.Errorf("the API server has no Node %s (--hostname-override)", h.nodeName)
	}
	return nil
}

// alive returns an error if a restart of the agent would help. A restart would not help if a source or the kernel fails: the agent
// retries both, and the kernel keeps serving the last state.
func (h *health) alive(now time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waiting != nil {
		return nil
	}
	since := h.lastSync
	if !h.syncEnded && h.source.Synced != nil {
		if !h.source.Synced() {
			return nil
		}
		if h.sourceSyncedAt.IsZero() {
			h.sourceSyncedAt = now
		}
		since = h.sourceSyncedAt
	}
	if age := now.Sub(since); age > h.bound+stuckAfter {
		return fmt.Errorf("the loop is stuck: no sync has ended for %s", age.Round(time.Second))
	}
	return nil
}

// ready returns an error before the first full sync, and while the source is stale.
func (h *health) ready(now time.Time) error {
	h.mu.Lock()
	synced, waiting := h.fullSynced, h.waiting
	h.mu.Unlock()
	switch {
	case waiting != nil:
		return waiting
	case !synced:
		return errNoFullSync
	}
	return h.fresh(now)
}

var errNoFullSync = errors.New("no full sync has succeeded yet")

// fresh returns an error if the source is stale. A source without a time of last contact is never stale.
func (h *health) fresh(now time.Time) error {
	if h.source.LastContact == nil {
		return nil
	}
	heard := h.source.LastContact()
	for _, kind := range slices.Sorted(maps.Keys(heard)) {
		if age := now.Sub(heard[kind]); age > staleAfter {
			return fmt.Errorf("no news of %s objects from the API server for %s", kind, age.Round(time.Second))
		}
	}
	return nil
}

func (h *health) lastSyncSuccess() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lastSuccess
}
