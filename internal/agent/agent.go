package agent

import (
	"context"
	"net/netip"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/agent/drain"
	"github.com/kube-ipvs/kube-ipvs/internal/agent/flows"
	"github.com/kube-ipvs/kube-ipvs/internal/agent/known"
	"github.com/kube-ipvs/kube-ipvs/internal/agent/schedule"
	"github.com/kube-ipvs/kube-ipvs/internal/agent/slowstart"
	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// Source is where Services come from.
type Source interface {
	// Changed is ready if Take would return something new, or if Synced has become true.
	Changed() <-chan struct{}
	// Synced reports whether every source has delivered its initial list. The agent writes nothing before (I4).
	Synced() bool
	// Take returns what changed since it was last called.
	Take() model.Changes
}

// Kernel is the node's kernel.
type Kernel interface {
	// Read returns everything of ours, and what of other programs affects us. On error the state is nil, never partial.
	Read(context.Context) (*kernel.State, error)
	// HasDevice reports whether kube-ipvs0 exists, and reads nothing else.
	HasDevice(context.Context) (bool, error)
	// Lookup returns those of the virtual servers that exist.
	Lookup(context.Context, []kernel.ServerKey) (map[kernel.ServerKey]kernel.ObservedServer, error)
	// Apply tries every operation in order and returns one error (or nil) for each.
	Apply(context.Context, []kernel.Op) []error
	// NodeAddresses returns the addresses of the node's interfaces other than kube-ipvs0. On error it returns none.
	NodeAddresses(context.Context) ([]netip.Addr, error)
	// Schedulers reports which of these schedulers the kernel has, and loads their modules where it can. The result has no entry for a
	// scheduler of which that could not be determined.
	Schedulers(ctx context.Context, names []string) map[string]bool
	// FindOldRules returns what an earlier start left in the iptables variant that the node no longer uses.
	FindOldRules(context.Context) ([]kernel.OldRules, error)
	// EndFlows deletes the stale tracked connections of these protocols and returns how many it deleted.
	EndFlows(ctx context.Context, protocols []inet.Protocol, stale func(kernel.Flow) bool) (int, error)
}

// Config of an agent.
type Config struct {
	Compile compile.Config
	// AuditInterval is the time between two comparisons with the whole kernel.
	AuditInterval time.Duration
	// MinInterval is the minimum time between the starts of two syncs.
	MinInterval time.Duration
	// DrainInterval is the time between two counts of draining destinations' connections. DrainTimeout is how long a destination may
	// drain; 0 means until its last connection ends.
	DrainInterval, DrainTimeout time.Duration
	// Disturbed is ready if another program may have changed the kernel: an audit follows. It may be nil.
	Disturbed <-chan struct{}
	// Moved is ready if the node's own addresses may have changed. It may be nil.
	Moved <-chan struct{}
	// Reload delivers changed settings. It may be nil.
	Reload <-chan Settings
	// Observe gets the report of every sync. It may be nil.
	Observe func(Report)
}

func (c Config) intervals() schedule.Intervals {
	return schedule.Intervals{Audit: c.AuditInterval, Min: c.MinInterval}
}

// Settings are those that can change while the agent runs.
type Settings struct {
	Compile                                  compile.Settings
	AuditInterval, MinInterval, DrainTimeout time.Duration
}

// Agent keeps one node's kernel in the state that the cluster asks for.
type Agent struct {
	cfg     Config
	source  Source
	kernel  Kernel
	cluster *compile.Cluster
	pending pending

	known    *known.Kernel
	schedule *schedule.Schedule
	ramps    *slowstart.Ramps
	draining *drain.Clocks
	stopped  *drain.Stopped
	flows    *flows.Flows
	// oldRulesDone is true once the agent has looked for rules of an earlier start in the other iptables variant.
	oldRulesDone bool

	requests  chan request
	history   *history
	observers []func(*Report)
}

// pending is what the next sync has to take in, besides the changes of the source.
type pending struct {
	// addresses is true while the node's addresses have to be read.
	addresses bool
	// settings are new ones; nil if there are none.
	settings *Settings
	// triggers belong to changes that may not have reached the kernel completely.
	triggers []model.Trigger
}
