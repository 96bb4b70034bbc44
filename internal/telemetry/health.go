package telemetry

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// stuckAfter is how long after two missed periods the loop counts as stuck. The first sync with ten thousand Services on a small
// machine takes minutes, and a restart would only start it over.
const stuckAfter = 5 * time.Minute

// staleAfter is the time without messages after which the data of a watch are stale. The API server sends a bookmark about once a
// minute, and the agent renews a watch after three minutes without messages.
const staleAfter = 5 * time.Minute

// health answers four questions. Each method returns nil for yes, and otherwise an error that says why not.
//
//   - healthy: does the agent keep this node's Services up to date? For people, alerts and health check ports.
//   - eligible: may load balancers send traffic to this node? Part of /healthz.
//   - alive: is the loop running? If not, a restart helps. For /livez.
//   - ready: has the node synced completely, and does it receive changes? For /readyz.
//
// kube-proxy counts only the changes that wait to be written. We count every sync: an agent that cannot read the kernel is
// unhealthy whether or not a change waits.
type health struct {
	bound    time.Duration
	families []inet.Family
	source   Source
	// nodeOptional is true with manifests, which need not contain this node's Node object.
	nodeName     string
	nodeOptional bool

	mu sync.Mutex
	// syncEnded is true after the first sync; lastSync is when the last one ended, or when the last quick check began, and the start of
	// the agent before that.
	syncEnded bool
	lastSync  time.Time
	// lastSuccess is when a sync last succeeded; zero for never.
	lastSuccess time.Time
	// failingSince is when the first of the present failures happened. Only a full sync that succeeds ends them; zero for none.
	failingSince time.Time
	// fullSynced is true once a full sync has succeeded.
	fullSynced bool
	// sourceSyncedAt is when alive first saw the source complete.
	sourceSyncedAt time.Time
	// stuck is the part of the kernel interface that does not answer; zero if all do.
	stuck kernel.StuckError
	node  *model.Node
	// waiting is what an agent waits for that has no loop yet; nil for nothing.
	waiting error
}

// minHealthBound leaves time for a sync on a busy machine, however short the period is.
const minHealthBound = 30 * time.Second

// healthBound is how old the last successful sync may be: two were missed then.
func healthBound(period time.Duration) time.Duration { return max(2*period, minHealthBound) }

func newHealth(cfg Config) *health {
	return &health{
		bound: healthBound(cfg.Period), families: cfg.Families, source: cfg.Source,
		nodeName: cfg.Node, nodeOptional: cfg.API == nil, lastSync: time.Now(),
	}
}

func (h *health) observe(r *agent.Report) {
	ended := r.Started.Add(r.Duration)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.syncEnded, h.lastSync, h.node = true, ended, r.Node
	h.bound = healthBound(r.Period) // a reload can change the period
	if stuck := r.Stuck(); r.Full && stuck.Part != h.stuck.Part {
		h.stuck = stuck // a part that is tried again and again has been stuck since the first time
	}
	if r.Err != nil {
		if h.failingSince.IsZero() {
			h.failingSince = ended
		}
		return
	}
	h.lastSuccess = ended
	if r.Full { // an incremental sync does not look at what failed before
		h.failingSince, h.fullSynced = time.Time{}, true
	}
}

// checked notes that the loop works and the kernel answers, although no sync was necessary.
func (h *health) checked(at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if at.After(h.lastSync) {
		h.lastSync = at
	}
}

// healthy returns an error if this node's Services may be out of date. The error does not quote the failure, which the log and
// Events do: anyone who reaches the port can read it.
func (h *health) healthy(now time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if age := now.Sub(h.lastSync); age > h.bound {
		if h.waiting != nil {
			return h.waiting
		}
		return fmt.Errorf("no sync for %s", age.Round(time.Second))
	}
	failing := h.failingFor(now)
	switch {
	case failing <= h.bound:
		return nil
	case h.stuck.Part != "":
		return fmt.Errorf("%s has been stuck for %s", h.stuck.Part, now.Sub(h.stuck.Since).Round(time.Second))
	}
	return fmt.Errorf("syncs have been failing for %s", failing.Round(time.Second))
}

// failing is true once syncs have failed for longer than a retry explains.
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

// eligible returns an error if load balancers should not use this node, however healthy it is. Before the first sync the Node
// is unknown and the node eligible: a restart of the agent must not turn traffic away.
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

// alive returns an error if a restart of the agent would help. It would not if a source or the kernel fails: the agent retries
// both, and meanwhile the kernel serves what was last written.
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

// fresh returns an error if the source is stale. A source that does not say when it was last heard from is never stale.
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
