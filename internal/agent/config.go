package agent

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/agent/schedule"
	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// Source delivers the Services.
type Source interface {
	// Changed signals that Take would return changes, or that Synced has become true.
	Changed() <-chan struct{}
	// Synced reports whether every source has delivered its initial list. The agent writes nothing before that (I4).
	Synced() bool
	// Take returns the changes since the previous call.
	Take() model.Changes
}

// Kernel is the node's kernel.
type Kernel interface {
	// Read returns kube-ipvs's own objects, and other programs' objects that affect them. On error, the state is nil, never partial.
	Read(context.Context) (*kernel.State, error)
	// AdoptRecords copies the owner records of an earlier run from the other rule layer into this one. If nftables balanced until now and IPVS is to
	// take over, it also copies the virtual servers to IPVS.
	AdoptRecords(context.Context) error
	// Audit reads the same state as Read. It returns the differences from the previous audit and the requested parts.
	// After an error, the next audit returns everything. Unlike the other methods, it may be called while another
	// method runs.
	Audit(context.Context, kernel.Audit) (*kernel.Differences, error)
	// Summarize reads a summary that includes the given virtual servers. Like Audit, it may be called while another
	// method runs.
	Summarize(context.Context, kernel.Sample) (*kernel.Summary, error)
	// HasDevice reports whether kube-ipvs0 exists.
	HasDevice(context.Context) (bool, error)
	// Lookup returns the given virtual servers that exist.
	Lookup(context.Context, []kernel.ServerKey) (map[kernel.ServerKey]kernel.ObservedServer, error)
	// LookupMembers returns the given set members that exist.
	LookupMembers(context.Context, []kernel.Member) (map[kernel.Member]struct{}, error)
	// Apply tries every operation in order and returns one result per operation: an error or nil. If all operations are on rules, Apply may
	// run while another method runs, but only one such call per family at a time.
	Apply(context.Context, []kernel.Op) []error
	// NodeAddresses returns the addresses of the node's interfaces other than kube-ipvs0. On error it returns none.
	NodeAddresses(context.Context) ([]netip.Addr, error)
	// Network returns addresses that the node's networks use themselves, such as gateways. On error it returns none.
	Network(context.Context) (kernel.Network, error)
	// Listeners returns the sockets on which the node's processes receive packets. On error it returns none.
	Listeners(context.Context) (kernel.Listeners, error)
	// Schedulers reports which of these schedulers the kernel has, and loads their modules if possible. The result
	// omits schedulers that could not be checked.
	Schedulers(ctx context.Context, names []string) map[string]bool
	// FindOldRules returns rules that a previous run of the agent left in the other iptables variant. Like Audit, it may be called while
	// another method runs.
	FindOldRules(context.Context) ([]kernel.OldRules, error)
	// FindLeftovers returns the objects that kube-proxy has left behind on the node. Only cleanup calls it.
	FindLeftovers(context.Context) (kernel.Leftovers, error)
	// EndFlows deletes stale tracked connections of these protocols and returns their number. Answered TCP
	// connections stay. Like Audit, it may be called while another method runs.
	EndFlows(ctx context.Context, protocols []inet.Protocol, stale func(kernel.Flow) bool) (int, error)
}

// Config configures an agent.
type Config struct {
	Compile compile.Config
	// AuditInterval is the time between two audits, which compare everything with the kernel.
	AuditInterval time.Duration
	// CheckInterval is the time between two quick checks; 0 turns them off. A quick check triggers an audit if another
	// program may have changed the kernel.
	CheckInterval time.Duration
	// MinInterval is the minimum time between the starts of two syncs.
	MinInterval time.Duration
	// Spacing is the average time between syncs during a storm of changes; 0 means no limit.
	Spacing time.Duration
	// DrainInterval is how often the agent counts the connections of draining destinations. DrainTimeout is how long a
	// destination may drain; 0 means no limit.
	DrainInterval, DrainTimeout time.Duration
	// KernelChanged signals that another program may have changed the kernel; the agent audits soon. It may be nil.
	KernelChanged <-chan struct{}
	// AddressesChanged signals that the node's addresses or networks may have changed. It may be nil.
	AddressesChanged <-chan struct{}
	// Reload delivers changed settings. It may be nil.
	Reload <-chan Reload
	// Move delivers another data plane for this node. It may be nil.
	Move    <-chan Move
	Observe func(Report)
	// CompleteSource is true if the first list is always complete, because it comes from this node.
	CompleteSource bool
	// LastKnown is the state to serve if the source is unavailable at the start; nil if there is none.
	LastKnown *LastKnown
	// Contacts returns the addresses at which the agent has tried to reach the source; nil if the source has no
	// addresses.
	Contacts func() []netip.AddrPort
	// Checked is called after every successful quick check and between the parts of a plan, with the current time. It may be nil.
	Checked func(time.Time)
}

func (c *Config) intervals() schedule.Intervals {
	return schedule.Intervals{Audit: c.AuditInterval, Min: c.MinInterval, Spacing: c.Spacing}
}

// Settings can change while the agent runs.
type Settings struct {
	Compile                                                 compile.Settings
	AuditInterval, CheckInterval, MinInterval, DrainTimeout time.Duration
}

// Reload contains changed settings and their names, for the history.
type Reload struct {
	Settings
	Changed []string
}

// checkedPeriod is the usual value of Period while quick checks are on.
const checkedPeriod = 30 * time.Second

// Period returns the maximum time between two signs of life from the loop.
func (s Settings) Period() time.Duration { return period(s.AuditInterval, s.CheckInterval) }

func (c *Config) period() time.Duration { return period(c.AuditInterval, c.CheckInterval) }

func period(audit, check time.Duration) time.Duration {
	if check == 0 {
		return audit
	}
	return min(audit, max(checkedPeriod, check))
}

// LastKnown is the state of the cluster from an earlier run. A node that boots while the API server is unavailable
// serves it.
type LastKnown struct {
	Changes model.Changes
	// Served is called with the result of every attempt: ErrKernelNewer if the kernel's state is newer.
	Served func(error)
}

// ErrKernelNewer means that the kernel already contains kube-ipvs state, which is newer than any file.
var ErrKernelNewer = errors.New("the kernel already has virtual servers, kube-ipvs0, or other objects that the snapshot would change")
