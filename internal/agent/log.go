package agent

import (
	"fmt"
	"maps"
	"slices"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// reportLog writes what reports say. It logs each failure, problem and warning once, and again after it was gone.
type reportLog struct {
	log *zap.Logger
	// synced is true once a full sync has succeeded.
	synced bool
	// failed are the failures already logged, foreign the warnings about foreign objects.
	failed, foreign map[string]bool
	problems        map[model.ServiceID][]model.Problem
}

func newReportLog(log *zap.Logger) *reportLog {
	return &reportLog{log: log, problems: map[model.ServiceID][]model.Problem{}}
}

// maxLines bounds the log of one pass: a start with ten thousand Services is told in numbers.
const maxLines = 200

// logReport writes one line per change made, in the words of the command that would do the same; nothing when nothing changed.
func (l *reportLog) observe(r *Report) {
	if r.Drift > 0 {
		l.log.Warn("somebody else changed what this agent had set up in the kernel; repairing", zap.Int("differences", r.Drift))
	}
	for _, d := range r.NewlyDrained {
		l.log.Info("endpoint is drained: its weight is 0 and no connection is left through this node",
			zap.Stringer("service", d.Service), zap.Stringer("server", d.Server), zap.Stringer("endpoint", d.Endpoint))
	}
	done := l.logResults(r)
	l.logOldRules(r)
	l.logTroubles(r)
	if r.Err == nil && r.Full && !l.synced {
		l.synced = true
		l.log.Info("everything is in place", zap.Int("services", r.Services), zap.Int("changes", done), zap.Duration("took", r.Duration))
	}
}

func (l *reportLog) logOldRules(r *Report) {
	if r.OldRulesErr != nil {
		l.log.Warn("cannot read the other iptables variant; rules of an earlier start may remain there until the agent restarts", zap.Error(r.OldRulesErr))
	}
	for _, result := range r.OldRules {
		if result.Err != nil {
			l.log.Warn("removing rules of an earlier start failed; the agent retries after a restart", zap.Stringer("op", result.Op), zap.Error(result.Err))
			continue
		}
		l.log.Info("removed rules of an earlier start", zap.Stringer("op", result.Op))
	}
}

// logResults writes a line for each change made and for each new failure. It returns the number of changes.
func (l *reportLog) logResults(r *Report) int {
	done, news, failed := 0, 0, map[string]bool{}
	for _, result := range r.Results {
		switch {
		case result.Skipped:
			l.log.Debug("skipped", zap.Stringer("op", result.Op), zap.Error(result.Err))
		case result.Err != nil:
			// Told once, not with every retry, of which the start may have one in the same pass. The line about the pass says that it
			// is still so.
			line := result.Op.String() + ": " + result.Err.Error()
			told := failed[line] || l.failed[line]
			if failed[line] = true; told {
				continue
			}
			if news++; news <= maxLines {
				l.log.Error("failed", zap.Stringer("op", result.Op), zap.Error(result.Err))
			}
		default:
			if done++; done <= maxLines {
				l.log.Info(result.Op.String())
			}
		}
	}
	if done > maxLines {
		l.log.Info("and more changes that are not listed", zap.Int("changes", done-maxLines))
	}
	if news > maxLines {
		l.log.Error("and more failures that are not listed", zap.Int("failures", news-maxLines))
	}
	if !r.Full { // other places were not tried: what was said of them still stands
		maps.Copy(failed, l.failed)
	}
	l.failed = failed
	return done
}

func (l *reportLog) logTroubles(r *Report) {
	for _, id := range r.Compiled {
		l.logProblems(id, r.Problems[id])
	}
	l.logProblems(model.ServiceID{}, r.NodeProblems)
	for _, object := range slices.SortedFunc(maps.Keys(r.Unreadable), model.ObjectRef.Compare) {
		for _, p := range r.Unreadable[object] {
			l.log.Warn(p.String())
		}
	}
	l.logForeign(r)
	if r.Err != nil {
		l.log.Error("pass failed; trying again", zap.Error(r.Err), zap.Duration("after", r.RetryAfter))
	}
}

// logProblems tells of a Service's problems once: every new endpoint compiles it again. The node's are those of no Service.
func (l *reportLog) logProblems(id model.ServiceID, problems []model.Problem) {
	for _, p := range problems {
		if !slices.Contains(l.problems[id], p) {
			l.log.Warn(p.String())
		}
	}
	if len(problems) == 0 {
		delete(l.problems, id)
		return
	}
	l.problems[id] = problems
}

// ipv6OffLine is told once, not for every address.
const ipv6OffLine = "IPv6 is switched off on " + kernel.Device + ": no Service is served at an IPv6 address; to switch it on: " +
	"sysctl -w net.ipv6.conf." + kernel.Device + ".disable_ipv6=0 (and the same for the node's other interfaces); the next audit binds " +
	"the addresses"

// logForeign tells of other people's objects in our place: once, and again when they change.
func (l *reportLog) logForeign(r *Report) {
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
		if told[line] = true; !l.foreign[line] {
			l.log.Warn(line)
		}
	}
	if !r.Full { // leftovers were not looked for: what was said of them still stands
		maps.Copy(told, l.foreign)
	}
	l.foreign = told
}
