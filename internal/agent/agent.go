package agent

import (
	"context"
	"net/netip"
	"time"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/agent/contest"
	"github.com/kube-ipvs/kube-ipvs/internal/agent/drain"
	"github.com/kube-ipvs/kube-ipvs/internal/agent/flows"
	"github.com/kube-ipvs/kube-ipvs/internal/agent/known"
	"github.com/kube-ipvs/kube-ipvs/internal/agent/schedule"
	"github.com/kube-ipvs/kube-ipvs/internal/agent/slowstart"
	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Source delivers the Services.
type Source interface {
	// Changed is ready if Take would return changes, or if Synced has become true.
	Changed() <-chan struct{}
	// Synced reports whether every source has delivered its initial list. The agent writes nothing before that (I4).
	Synced() bool
	// Take returns the changes since the previous call.
	Take() model.Changes
}

// Kernel is the node's kernel.
type Kernel interface {
	// Read returns kube-ipvs's own objects and those of other programs that affect it. On error the state is nil, never partial.
	Read(context.Context) (*kernel.State, error)
	// Audit reads the kernel as Read does. It returns the differences from the previous audit and the parts that the request names. After an
	// error, the next audit returns everything. Unlike the other methods, it may be called while another one runs.
	Audit(context.Context, kernel.Audit) (*kernel.Differences, error)
	// Summarize reads a summary that includes these virtual servers. Like Audit, it may be called while other methods run.
	Summarize(context.Context, []kernel.ServerKey) (*kernel.Summary, error)
	// HasDevice reports whether kube-ipvs0 exists. It reads nothing else.
	HasDevice(context.Context) (bool, error)
	// Lookup returns those of the given virtual servers that exist.
	Lookup(context.Context, []kernel.ServerKey) (map[kernel.ServerKey]kernel.ObservedServer, error)
	// LookupMembers returns those of the given members of sets that exist.
	LookupMembers(context.Context, []kernel.Member) (map[kernel.Member]struct{}, error)
	// Apply tries every operation in order and returns one result per operation: an error or nil. Like Audit, it may be called while another
	// method runs if all operations are on rules, once for each family.
	Apply(context.Context, []kernel.Op) []error
	// NodeAddresses returns the addresses of the node's interfaces other than kube-ipvs0. On error it returns none.
	NodeAddresses(context.Context) ([]netip.Addr, error)
	// Network returns addresses that the node's networks use themselves, such as gateways. On error it returns none.
	Network(context.Context) (kernel.Network, error)
	// Listeners returns the sockets on which the node's processes receive packets. On error it returns none.
	Listeners(context.Context) (kernel.Listeners, error)
	// Schedulers reports which of these schedulers the kernel has, and loads their modules if possible. Schedulers that it could not check
	// are absent from the result.
	Schedulers(ctx context.Context, names []string) map[string]bool
	// FindOldRules returns rules that a previous run of the agent left in the other iptables variant. Like Audit, it may be called while
	// another method runs.
	FindOldRules(context.Context) ([]kernel.OldRules, error)
	// EndFlows deletes stale tracked connections of these protocols and returns their number. It deletes a TCP connection only if that has
	// had no answer. Like Audit, it may be called while another method runs.
	EndFlows(ctx context.Context, protocols []inet.Protocol, stale func(kernel.Flow) bool) (int, error)
}

// Config configures an agent.
type Config struct {
	Compile compile.Config
	// AuditInterval is the time between two audits, which compare with the whole kernel.
	AuditInterval time.Duration
	// CheckInterval is the time between two quick checks; 0 turns them off. A quick check requests an audit if another program may have
	// changed the kernel.
	CheckInterval time.Duration
	// MinInterval is the minimum time between the starts of two syncs.
	MinInterval time.Duration
	// DrainInterval is the time between two counts of the connections of draining destinations. DrainTimeout is how long a destination may
	// drain; 0 means until its last connection ends.
	DrainInterval, DrainTimeout time.Duration
	// KernelChanged signals that another program may have changed the kernel; the agent audits soon. It may be nil.
	KernelChanged <-chan struct{}
	// AddressesChanged signals that the node's addresses or networks may have changed. It may be nil.
	AddressesChanged <-chan struct{}
	// Reload delivers changed settings. It may be nil.
	Reload <-chan Settings
	// Observe is called with the report of every sync. It may be nil.
	Observe func(Report)
	// CompleteSource is true if the first list cannot lack Services by mistake, because it comes from this node.
	CompleteSource bool
	// LastKnown is served if the source is unavailable at the start; nil for nothing.
	LastKnown *LastKnown
	// Contacts returns the addresses at which the source was tried; nil if it needs none.
	Contacts func() []netip.AddrPort
	// Checked is called with the time of every successful quick check, and between the parts of a plan. It may be nil.
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

// checkedPeriod is the Period of Reports if quick checks prove that the loop works between rare full syncs.
const checkedPeriod = 30 * time.Second

// Period is the Period of Reports under these settings.
func (s Settings) Period() time.Duration { return period(s.AuditInterval, s.CheckInterval) }

func period(audit, check time.Duration) time.Duration {
	if check == 0 {
		return audit
	}
	return min(audit, max(checkedPeriod, check))
}

// Agent keeps one node's kernel in the wanted state.
type Agent struct {
	cfg     Config
	source  Source
	kernel  Kernel
	cluster *compile.Cluster
	target  *diff.Target
	pending pending

	known      *known.Kernel
	schedule   *schedule.Schedule
	ramps      *slowstart.Ramps
	draining   *drain.Clocks
	stopped    *drain.Stopped
	flows      *flows.Flows
	contests   contest.Contests
	background *background
	walks      *walks
	checks     *checks
	oldRules   *oldRules
	// writingRules are the families of which a write of rules runs.
	writingRules map[inet.Family]bool
	// stuck has the programs that do not work.
	stuck     map[string]kernel.StuckError
	lastKnown lastKnown
	wayOut    wayOut
	// held counts the Services that are kept although they are missing from the API server's list.
	held      int
	inherited inherited
	// lostAddresses is when the node lost its last address; zero while it has one.
	lostAddresses time.Time
	// listed is when the node's sockets were last listed.
	listed time.Time
	// probed is when missing schedulers were last probed.
	probed time.Time

	// waited counts how often Services were in parts of a plan that had to wait for the next sync.
	waited map[model.ServiceID]int
	// partSize is maxPart, except in tests.
	partSize int
	// requests are functions that queries ask the loop to run.
	requests  chan func()
	history   *history
	log       *zap.Logger
	observers []func(*Report)
}

// pending is the input of the next sync, apart from the source's changes.
type pending struct {
	// addresses is true if the node's addresses and networks must be read.
	addresses bool
	// sync requests a sync before any deadline.
	sync bool
	// audit is the result of an audit; nil if none has ended.
	audit *audit
	// settings are the changed settings; nil if there are none.
	settings *Settings
	// reconfigured is true if settings changed since everything was last compared with the kernel.
	reconfigured bool
	// touched are the objects of the last sync if it ended early; nil if it did not.
	touched *want.Touched
	// lateRules are failures to write rules that no report has told yet.
	lateRules []Result
	// triggers are the triggers of changes that the kernel may not have in full.
	triggers []model.Trigger
}
