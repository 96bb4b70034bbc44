package agent

import (
	"context"
	"net/netip"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/agent/contest"
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
	// Read returns the objects of kube-ipvs, and those of other programs that affect it. On error the state is nil, never partial.
	Read(context.Context) (*kernel.State, error)
	// Audit reads the kernel as Read does and returns what differs from the audit before, and what it is asked for. After an error, the next
	// one returns everything. Unlike the other methods, it may be called while another one runs.
	Audit(context.Context, kernel.Audit) (*kernel.Differences, error)
	// Summarize reads a summary, with these virtual servers. Like Audit, it may be called while other methods run.
	Summarize(context.Context, []kernel.ServerKey) (*kernel.Summary, error)
	// HasDevice reports whether kube-ipvs0 exists. It reads nothing else.
	HasDevice(context.Context) (bool, error)
	// Lookup returns the virtual servers that exist, of those named.
	Lookup(context.Context, []kernel.ServerKey) (map[kernel.ServerKey]kernel.ObservedServer, error)
	// Apply tries every operation in order and returns one error (or nil) for each.
	Apply(context.Context, []kernel.Op) []error
	// NodeAddresses returns the addresses of the node's interfaces other than kube-ipvs0. On error it returns none.
	NodeAddresses(context.Context) ([]netip.Addr, error)
	// Network returns the addresses that the node's networks need, such as gateways. On error it returns none.
	Network(context.Context) (kernel.Network, error)
	// Listeners returns where processes of the node receive packets. On error it returns none.
	Listeners(context.Context) (kernel.Listeners, error)
	// Schedulers reports which of these schedulers the kernel has, and loads their modules where it can. The result has no entry for a
	// scheduler that could not be checked.
	Schedulers(ctx context.Context, names []string) map[string]bool
	// FindOldRules returns the rules that an earlier start left in the iptables variant that the node no longer uses.
	FindOldRules(context.Context) ([]kernel.OldRules, error)
	// EndFlows deletes the stale tracked connections of these protocols and returns how many it deleted. Of TCP it deletes only
	// connections without an answer. Like Audit, it may be called while another one runs.
	EndFlows(ctx context.Context, protocols []inet.Protocol, stale func(kernel.Flow) bool) (int, error)
}

// Config of an agent.
type Config struct {
	Compile compile.Config
	// AuditInterval is the time between two comparisons with the whole kernel.
	AuditInterval time.Duration
	// CheckInterval is the time between two quick checks, which make an audit due if another program may have changed the kernel; 0 for none.
	CheckInterval time.Duration
	// MinInterval is the minimum time between the starts of two syncs.
	MinInterval time.Duration
	// DrainInterval is the time between two counts of draining destinations' connections. DrainTimeout is how long a destination may
	// drain; 0 means until its last connection ends.
	DrainInterval, DrainTimeout time.Duration
	// KernelChanged receives when another program may have changed the kernel; the agent audits soon. It may be nil.
	KernelChanged <-chan struct{}
	// AddressesChanged receives when the node's own addresses or its networks may have changed. It may be nil.
	AddressesChanged <-chan struct{}
	// Reload delivers changed settings. It may be nil.
	Reload <-chan Settings
	// Observe gets the report of every sync. It may be nil.
	Observe func(Report)
	// Checked gets the time of every quick check that succeeded. It may be nil.
	Checked func(time.Time)
}

func (c Config) intervals() schedule.Intervals {
	return schedule.Intervals{Audit: c.AuditInterval, Min: c.MinInterval}
}

// Settings can change while the agent runs.
type Settings struct {
	Compile                                                 compile.Settings
	AuditInterval, CheckInterval, MinInterval, DrainTimeout time.Duration
}

// checkedPeriod is the Period of Reports where quick checks show that the loop works, and full syncs are rarer.
const checkedPeriod = 30 * time.Second

// Period is that of the Reports with these settings.
func (s Settings) Period() time.Duration { return period(s.AuditInterval, s.CheckInterval) }

func period(audit, check time.Duration) time.Duration {
	if check == 0 {
		return audit
	}
	return min(audit, max(checkedPeriod, check))
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
	contests contest.Contests
	walks    *walks
	audits   *audits
	checks   *checks
	// held counts the Services that are kept although the API server's list lacks them.
	held int
	// lostAddresses is when this node was first seen without any address; zero while it has one.
	lostAddresses time.Time
	// oldRulesDone is true once the agent has looked for rules of an earlier start in the other iptables variant.
	oldRulesDone bool

	// requests are what queries take from the loop.
	requests  chan func()
	history   *history
	observers []func(*Report)
}

// pending is the input of the next sync besides the changes of the source.
type pending struct {
	// addresses is true until the node's addresses and networks are read.
	addresses bool
	// sync is true if a sync must follow although no deadline has passed.
	sync bool
	// audit is the result of an audit; nil if there is none.
	audit *audit
	// settings are the changed settings; nil if there are none.
	settings *Settings
	// triggers belong to changes that may not be completely in the kernel.
	triggers []model.Trigger
}
