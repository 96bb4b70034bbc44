package agent

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// Report says what one pass found and did. Logs, metrics and events are made from it and from nothing else.
type Report struct {
	Started  time.Time
	Duration time.Duration
	// Full is true when the whole kernel was read for this pass.
	Full bool
	// Drift counts the differences that an audit found although all our writes had succeeded and nothing had changed in the
	// cluster: somebody else changed the kernel.
	Drift int
	// Compiled are the Services that were compiled; Services counts all.
	Compiled []model.ServiceID
	Services int
	// Problems of the compiled Services: an empty list says all well again.
	Problems map[model.ServiceID][]model.Problem
	// Served is what this node serves of the compiled Services; it has no Service where there is none any more.
	Served map[model.ServiceID]compile.Served
	// VirtualServers counts those that are wanted, Draining the endpoints that keep connections and get no new ones.
	VirtualServers, Draining int
	// Stopped counts the endpoints whose weight somebody set to 0, by virtual server, and Drained those of them that have no
	// connection left through this node: as of the last full pass.
	Stopped, Drained int
	// Stages are the parts of Duration.
	Stages Stages
	// HealthPorts of the compiled Services; Port is 0 where a Service has none.
	HealthPorts map[model.ServiceID]compile.HealthPort
	// Node is this node's object; nil while it is unknown.
	Node *model.Node
	// NodeProblems are all that is wrong with this node.
	NodeProblems []model.Problem
	// Unreadable are problems with objects that could not be made into Services, by object.
	Unreadable map[string][]model.Problem
	// Foreign are the virtual servers of others where we want one, with the Service that goes without.
	Foreign map[kernel.ServerKey]string
	// Leftovers are reported, never deleted.
	Leftovers diff.Leftovers
	// IPv6Off is true while the kernel refuses wanted IPv6 addresses because somebody has switched the family off.
	IPv6Off bool
	Results []Result
	// NodePortAddresses are where node ports are served; nil means at every address of the node.
	NodePortAddresses []netip.Addr
	// Period is the longest time until the next pass.
	Period time.Duration
	// NoLocal are, for the compiled Services, the policies "Local" that have endpoints, but none on this node.
	NoLocal map[model.ServiceID][]compile.NoLocal
	// Programmed are the changes of EndpointSlices that the kernel has since this pass, for all of which nothing failed.
	Programmed []model.Trigger
	// EndedFlows counts the tracked connections that were forgotten because their endpoint is gone.
	EndedFlows int
	// Err is the first thing that went wrong; RetryAfter says when it is tried again.
	Err        error
	RetryAfter time.Duration
	// flowsErr is why connections to endpoints that are gone could not be ended; it becomes part of Err.
	flowsErr error
}

// Stages are how long a pass took to compute what is wanted, to compare it (which may read the whole kernel), and to write; and on a
// new node, to do all of that for the Services that lead.
type Stages struct{ Lead, Compile, Plan, Apply time.Duration }

// Result is what became of one operation.
type Result struct {
	Op      kernel.Op
	Err     error
	Skipped bool // not tried, because something it builds on had failed
}

// optional says whether a failure is no failure of the pass.
func (r Result) optional() bool {
	sysctl, ok := r.Op.Object.(kernel.SysctlSetting)
	return ok && sysctl.Optional
}

func (r *Report) firstError() error {
	failed := 0
	var first error
	for _, result := range r.Results {
		if result.Err == nil || result.Skipped || result.optional() {
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

// compiled adds Services to those that were compiled.
func (r *Report) compiled(ids []model.ServiceID) {
	r.Compiled = slices.Compact(slices.SortedFunc(slices.Values(slices.Concat(r.Compiled, ids)), model.ServiceID.Compare))
}

func (r *Report) finish(took time.Duration, cluster *compile.Cluster) {
	r.Duration = took
	r.Services, r.VirtualServers = cluster.Services(), len(cluster.Want().Servers)
	r.Node = cluster.Node()
	r.NodeProblems = cluster.NodeProblems()
	r.NodePortAddresses = cluster.NodePortAddresses()
	r.NoLocal = map[model.ServiceID][]compile.NoLocal{}
	r.Problems = map[model.ServiceID][]model.Problem{}
	r.Served = map[model.ServiceID]compile.Served{}
	r.HealthPorts = map[model.ServiceID]compile.HealthPort{}
	for _, id := range r.Compiled {
		r.Problems[id] = cluster.Problems(id)
		r.Served[id] = cluster.Served(id)
		r.HealthPorts[id] = cluster.HealthPort(id)
		r.NoLocal[id] = cluster.NoLocal(id)
	}
	r.Foreign = map[kernel.ServerKey]string{}
	for key, server := range cluster.Want().Foreign() {
		r.Foreign[key] = server.Owner
	}
}

// maxLines bounds the log of one pass: a start with ten thousand Services is told in numbers.
const maxLines = 200

// logReport writes one line per change made, in the words of the command that would do the same; nothing when nothing changed.
func (a *Agent) logReport(r *Report) {
	if r.Drift > 0 {
		a.log.Warn("somebody else changed what this agent had set up in the kernel; repairing", zap.Int("differences", r.Drift))
	}
	done := a.logResults(r)
	a.logTroubles(r)
	if r.Err == nil && r.Full && !a.inPlace {
		a.inPlace = true
		a.log.Info("everything is in place", zap.Int("services", r.Services), zap.Int("changes", done), zap.Duration("took", r.Duration))
	}
}

// logResults writes a line for each change made and for each new failure. It returns the number of changes.
func (a *Agent) logResults(r *Report) int {
	done, news, failed := 0, 0, map[string]bool{}
	for _, result := range r.Results {
		switch {
		case result.Skipped:
			a.log.Debug("skipped", zap.Stringer("op", result.Op), zap.Error(result.Err))
		case result.Err != nil:
			// Told once, not with every retry, of which the start may have one in the same pass. The line about the pass says that it
			// is still so.
			line := result.Op.String() + ": " + result.Err.Error()
			told := failed[line] || a.toldFailed[line]
			if failed[line] = true; told {
				continue
			}
			if news++; news <= maxLines {
				a.log.Error("failed", zap.Stringer("op", result.Op), zap.Error(result.Err))
			}
		default:
			if done++; done <= maxLines {
				a.log.Info(result.Op.String())
			}
		}
	}
	if done > maxLines {
		a.log.Info("and more changes that are not listed", zap.Int("changes", done-maxLines))
	}
	if news > maxLines {
		a.log.Error("and more failures that are not listed", zap.Int("failures", news-maxLines))
	}
	if !r.Full { // other places were not tried: what was said of them still stands
		maps.Copy(failed, a.toldFailed)
	}
	a.toldFailed = failed
	return done
}

func (a *Agent) logTroubles(r *Report) {
	for _, id := range r.Compiled {
		a.logProblems(id, r.Problems[id])
	}
	a.logProblems(model.ServiceID{}, r.NodeProblems)
	for _, object := range sortedKeys(r.Unreadable) {
		for _, p := range r.Unreadable[object] {
			a.log.Warn(p.String())
		}
	}
	a.logForeign(r)
	if r.Err != nil {
		a.log.Error("pass failed; trying again", zap.Error(r.Err), zap.Duration("after", r.RetryAfter))
	}
}

// logProblems tells of a Service's problems once: every new endpoint compiles it again. The node's are those of no Service.
func (a *Agent) logProblems(id model.ServiceID, problems []model.Problem) {
	for _, p := range problems {
		if !slices.Contains(a.toldOf[id], p) {
			a.log.Warn(p.String())
		}
	}
	if len(problems) == 0 {
		delete(a.toldOf, id)
		return
	}
	a.toldOf[id] = problems
}

// ipv6OffLine is told once, not for every address.
const ipv6OffLine = "IPv6 is switched off on " + kernel.Device + ": no Service is served at an IPv6 address; to switch it on: " +
	"sysctl -w net.ipv6.conf." + kernel.Device + ".disable_ipv6=0 (and the same for the node's other interfaces); the next audit binds " +
	"the addresses"

// logForeign tells of other people's objects in our place: once, and again when they change.
func (a *Agent) logForeign(r *Report) {
	var lines []string
	for key, service := range r.Foreign {
		lines = append(lines, fmt.Sprintf("Service %s is not served at %s: a virtual server that is not ours stands there; "+
			"delete it (ipvsadm -D %s) or give the Service another address", service, key.Addr, key))
	}
	if r.Full {
		for _, key := range r.Leftovers.Servers {
			lines = append(lines, fmt.Sprintf("virtual server %s is on an address of %s, but no Service wants it and it is not recorded as ours; "+
				"left alone (ipvsadm -D %s removes it)", key, kernel.Device, key))
		}
		for _, addr := range r.Leftovers.Addresses {
			lines = append(lines, fmt.Sprintf("address %s on %s belongs to no Service and is not recorded as ours; left alone "+
				"(ip addr del %s/%d dev %s removes it)", addr, kernel.Device, addr, addr.BitLen(), kernel.Device))
		}
	}
	if r.IPv6Off {
		lines = append(lines, ipv6OffLine)
	}
	slices.Sort(lines)
	told := map[string]bool{}
	for _, line := range lines {
		if told[line] = true; !a.told[line] {
			a.log.Warn(line)
		}
	}
	if !r.Full { // leftovers were not looked for: what was said of them still stands
		maps.Copy(told, a.told)
	}
	a.told = told
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
