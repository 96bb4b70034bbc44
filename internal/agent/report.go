package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/agent/contest"
	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// Report describes what one sync found and did. Logs, metrics, Events and the history depend on reports alone.
type Report struct {
	Started  time.Time
	Duration time.Duration
	// Full is true if the sync compared everything with the kernel.
	Full   bool
	Kind   view.SyncKind
	Causes []view.Cause
	// Waited is how long the first change from the source waited.
	Waited time.Duration
	// Drift counts the differences that an audit found although all writes succeeded and nothing changed in the cluster.
	Drift    int
	Drifted  []contest.Finding
	Compiled []model.ServiceID
	Services int
	// Written lists the Services whose objects the sync wrote or tried to write. The first sync does not list them.
	Written []model.ServiceID
	// Problems are the Problems of the compiled Services, and of Services whose refused objects changed. An empty
	// list means that earlier Problems are resolved.
	Problems map[model.ServiceID][]model.Problem
	// Served describes how this node serves each compiled Service; it is zero for deleted Services.
	Served map[model.ServiceID]compile.Served
	// VirtualServers counts the wanted virtual servers. Draining counts the endpoints that have connections but
	// accept no new ones.
	VirtualServers, Draining int
	// Stopped counts the endpoints whose weight is 0 by annotation, once per virtual server. Drained counts those
	// with no connections through this node. Both counts are as of the last full sync.
	Stopped, Drained int
	// NewlyDrained lists the stopped endpoints whose last connection has ended since the previous full sync.
	NewlyDrained []DrainedEndpoint
	Stages       Stages
	Node         *model.Node
	NodeProblems []model.Problem
	// Unreadable contains the Problems of objects that could not be converted.
	Unreadable map[model.ObjectRef][]model.Problem
	// ProblemChanges lists the Problems that are new or resolved.
	ProblemChanges []ProblemChange
	// Foreign contains the wanted virtual servers that cannot be written because a foreign virtual server has the
	// same key.
	Foreign map[kernel.ServerKey]model.ServicePortRef
	// Leftovers are unwanted objects that the agent reports but never deletes.
	Leftovers   diff.Leftovers
	Results     []Result
	OldRules    []Result
	OldRulesErr error
	// NodePortAddresses are the addresses that serve node ports; nil means all addresses of the node.
	NodePortAddresses []netip.Addr
	// LoopbackAddresses are the loopback addresses that serve node ports.
	LoopbackAddresses []netip.Addr
	// Period is the maximum time between two signs of life from the loop: a full sync or a successful quick check.
	Period time.Duration
	// NextAudit is the time from the start of the last full sync to the next regular one.
	NextAudit  time.Duration
	Programmed []model.Trigger
	// EndedFlows counts the stale tracked connections that walks have ended since the last report.
	EndedFlows int
	// Err is the first error. RetryAfter is the time until the retry.
	Err        error
	RetryAfter time.Duration
	// Waiting describes rules that were still being written when the sync ended. Only operations that depend on these
	// rules are waiting.
	Waiting error
	// Partial is true if the sync left part of its plan: for the next sync, because other changes were waiting, or for the next audit, because writes
	// failed while this one was reading, and may have taken effect.
	Partial bool
	Stuck   []kernel.StuckError
	// rulesErr contains the errors from reading the rules. Err includes them.
	rulesErr  kernel.RulesError
	rulesRead bool
}

// Check identifies a check of an object. A check always reports all Problems of its object.
type Check struct {
	// Reading is true if the check converts an object from the API server.
	Reading bool
	Object  model.ObjectRef
}

// ProblemChange is a change in the Problems that a check reports.
type ProblemChange struct {
	Check
	Added, Resolved []model.Problem
	More            int
}

// DriftKinds maps parts of the kernel to kinds of drift.
var DriftKinds = contest.Kinds

// If all reads of the rules are still running, the sync has not failed. When a read ends, it triggers an audit.
func (r *Report) rulesFailure() (waits bool, err error) {
	waits = true
	for _, err := range r.rulesErr {
		var stuck kernel.StuckError
		waits = waits && errors.As(err, &stuck) && stuck.Cause == nil
	}
	if err = r.rulesErr.Err(); err != nil {
		err = fmt.Errorf("read the rules: %w; the agent assumes they are unchanged, and changes that need new rules wait", err)
	}
	return waits, err
}

// DrainedEndpoint is an endpoint with weight 0 whose last connection through this node has ended.
type DrainedEndpoint struct {
	Service  model.ServicePortRef
	Server   kernel.ServerKey
	Endpoint netip.AddrPort
}

// Stages are the durations of the stages of a sync. Gather is part of Compile. Bootstrap is the total of all stages for
// the bootstrap Services of a new node.
type Stages struct{ Bootstrap, Gather, Compile, Plan, Apply time.Duration }

// Result is the outcome of one operation.
type Result struct {
	Op      kernel.Op
	Err     error
	Skipped bool // not tried, because it depends on a failed operation or the kernel has refused it before
}

// Refused reports whether the kernel refused the object itself. A Problem of the Service describes the refusal.
func (r Result) Refused() bool { return r.Err != nil && !r.Skipped && kernel.Refused(r.Op, r.Err) }

// Unfinished reports whether the operation is still running.
func (r Result) Unfinished() bool { return errors.Is(r.Err, errUnfinished) && !r.Skipped }

var errUnfinished = errors.New("iptables has not finished yet")

var errOccupied = fmt.Errorf("%w: an earlier write is still running", errUnfinished)

func (r Result) optional() bool {
	sysctl, ok := r.Op.Object.(kernel.SysctlSetting)
	return ok && sysctl.Optional
}

func (r Result) failed() bool { return r.Err != nil && !r.Skipped && !r.optional() && !r.Unfinished() }

func (r *Report) firstError() error {
	return r.errorOf(func(result Result) bool { return result.failed() && !result.Refused() })
}

func (r *Report) errorOf(counts func(Result) bool) error {
	failed := 0
	var first error
	for _, result := range r.Results {
		if !counts(result) {
			continue
		}
		if failed++; first == nil {
			first = result.Err
		}
	}
	if failed > 1 {
		return fmt.Errorf("%d of %d operations failed, the first: %w", failed, len(r.Results), first)
	}
	return first
}

func (r *Report) firstUnfinished() error {
	if i := slices.IndexFunc(r.Results, Result.Unfinished); i >= 0 {
		return r.Results[i].Err
	}
	return nil
}

// Complete reports whether the kernel was in the wanted state after a full sync.
func (r *Report) Complete() bool { return r.Full && r.Err == nil && r.Waiting == nil && !r.Partial }

func (r *Report) compiled(ids []model.ServiceID) {
	r.Compiled = slices.Compact(slices.SortedFunc(slices.Values(slices.Concat(r.Compiled, ids)), model.ServiceID.Compare))
}

func (r *Report) describe(cluster *compile.Cluster, target *diff.Target) {
	r.Services, r.VirtualServers = cluster.Services(), target.Count()
	r.Node = cluster.Node()
	r.NodePortAddresses = cluster.NodePortAddresses()
	r.LoopbackAddresses = cluster.LoopbackAddresses()
	r.Served = map[model.ServiceID]compile.Served{}
	for _, id := range r.Compiled {
		r.Served[id] = cluster.Served(id)
	}
	r.Foreign = map[kernel.ServerKey]model.ServicePortRef{}
	for key, server := range target.Foreign() {
		r.Foreign[key] = server.Owner
	}
}
