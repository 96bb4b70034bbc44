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
)

// Report describes what one sync found and did. Logs, metrics, Events and the history use nothing else.
type Report struct {
	Started  time.Time
	Duration time.Duration
	// Full is true if the whole kernel was read.
	Full bool
	// Drift counts the differences that an audit found although all writes had succeeded and nothing had changed in the cluster.
	Drift int
	// Drifted lists these differences by object.
	Drifted []contest.Finding
	// Compiled are the Services that this sync compiled; Services counts all.
	Compiled []model.ServiceID
	Services int
	// Problems are those of the compiled Services and of Services with new or resolved refusals by the kernel. An empty list means that
	// earlier problems are resolved.
	Problems map[model.ServiceID][]model.Problem
	// Served is what this node serves of each compiled Service; it is zero for a deleted one.
	Served map[model.ServiceID]compile.Served
	// VirtualServers counts the wanted virtual servers, Draining the endpoints that keep connections and get no new ones.
	VirtualServers, Draining int
	// Stopped counts, per virtual server, the endpoints with weight 0 by annotation. Drained counts those without connections through this
	// node. Both are as of the last full sync.
	Stopped, Drained int
	// NewlyDrained are the stopped endpoints whose last connection ended since the previous full sync.
	NewlyDrained []DrainedEndpoint
	// Stages are the parts of Duration.
	Stages Stages
	// Node is this node's object; nil while it is unknown.
	Node *model.Node
	// NodeProblems are all problems of this node.
	NodeProblems []model.Problem
	// Unreadable are problems of objects that cannot be converted, by object.
	Unreadable map[model.ObjectRef][]model.Problem
	// ProblemChanges are the Problems that are new or resolved.
	ProblemChanges []ProblemChange
	// Foreign are the virtual servers whose keys are taken by foreign ones, so they cannot be written, each with its Service port.
	Foreign map[kernel.ServerKey]model.ServicePortRef
	// Found is what exists in the kernel but is not wanted. It is reported, never deleted.
	diff.Found
	Results []Result
	// OldRules are the operations that removed old rules from the other iptables variant. OldRulesErr is the error of the search for them.
	OldRules    []Result
	OldRulesErr error
	// NodePortAddresses are the addresses with node ports; nil means every address of the node.
	NodePortAddresses []netip.Addr
	// LoopbackAddresses are the loopback addresses with node ports.
	LoopbackAddresses []netip.Addr
	// Period is the longest time until the next full sync, or less if quick checks show in between that the loop works.
	Period time.Duration
	// Programmed are the triggers whose changes this sync completed in the kernel without any failure.
	Programmed []model.Trigger
	// EndedFlows counts the stale tracked connections that walks have ended since the last report.
	EndedFlows int
	// Err is the first error, RetryAfter the time until the retry.
	Err        error
	RetryAfter time.Duration
	// Waiting describes the rules for which the sync did not wait. That is not a failure, but what depends on them waits.
	Waiting error
	// Interrupted is true if a part of the plan is left to the next sync, because changes of other Services wait.
	Interrupted bool
	// Stuck are the parts of the kernel interface that do not work, sorted.
	Stuck []kernel.StuckError
	// rulesErr is why the rules could not be read. Err includes it.
	rulesErr kernel.RulesError
	// rulesRead is true if all others were read.
	rulesRead bool
}

// Check is a check of an object. It always reports all Problems of the object, so a missing one is resolved.
type Check struct {
	// Reading is true if the check converts an object of the API server, and false for all others.
	Reading bool
	Object  model.ObjectRef
}

// ProblemChange is a change in the Problems that a check reports.
type ProblemChange struct {
	Check
	Added, Resolved []model.Problem
	// More is the change in the number of Problems.
	More int
}

// DriftKinds are the parts of the kernel in which audits find drift, each with its kinds of drift.
var DriftKinds = contest.Kinds

// rulesFailure is the part of Err about reading the rules. It is waiting, not a failure, if every read still runs: the end of a read requests an
// audit.
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

// DrainedEndpoint is an endpoint with weight 0 that has no connection left through this node.
type DrainedEndpoint struct {
	// Service names the Service port, for instance "default/web:http".
	Service  model.ServicePortRef
	Server   kernel.ServerKey
	Endpoint netip.AddrPort
}

// Stages are the durations of the stages of a sync: compile, plan (which may read the whole kernel) and apply. Bootstrap is the total of all
// three for a new node's bootstrap Services.
type Stages struct{ Bootstrap, Compile, Plan, Apply time.Duration }

// Result is the outcome of one operation.
type Result struct {
	Op      kernel.Op
	Err     error
	Skipped bool // not tried: it depends on a failed operation, or the kernel has refused it before
}

// Refused reports whether the kernel refused the operation because of its object. A Problem of the Service describes the refusal.
func (r Result) Refused() bool { return r.Err != nil && !r.Skipped && kernel.Refused(r.Op, r.Err) }

// Unfinished reports whether the result is not known yet.
func (r Result) Unfinished() bool { return errors.Is(r.Err, errUnfinished) && !r.Skipped }

// errUnfinished is the result of writing rules for which the sync did not wait. Whatever depends on them waits for an audit, which follows
// when the write ends.
var errUnfinished = errors.New("iptables has not finished yet")

// errOccupied is the result while an earlier write runs.
var errOccupied = fmt.Errorf("%w: an earlier write still runs", errUnfinished)

// optional reports whether the sync succeeds even if the operation fails.
func (r Result) optional() bool {
	sysctl, ok := r.Op.Object.(kernel.SysctlSetting)
	return ok && sysctl.Optional
}

// failed reports whether the operation was tried and failed, although it is not optional.
func (r Result) failed() bool { return r.Err != nil && !r.Skipped && !r.optional() && !r.Unfinished() }

// firstError returns the node's failures. Refused objects do not count.
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

// Complete reports whether the kernel is in the wanted state after a full sync.
func (r *Report) Complete() bool { return r.Full && r.Err == nil && r.Waiting == nil && !r.Interrupted }

// compiled adds Services to the compiled ones.
func (r *Report) compiled(ids []model.ServiceID) {
	r.Compiled = slices.Compact(slices.SortedFunc(slices.Values(slices.Concat(r.Compiled, ids)), model.ServiceID.Compare))
}

// describe adds the compiled cluster's part of the report.
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
