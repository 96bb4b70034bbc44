package agent

import (
	"fmt"
	"maps"
	"slices"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/agent/contest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// reportLog logs each failure, problem and warning once, and again if it recurs.
type reportLog struct {
	cfg             *Config // a move changes its mode
	log             *zap.Logger
	synced          bool
	failed, foreign map[string]bool
	oldRules        map[string]bool
}

func newReportLog(cfg *Config, log *zap.Logger) *reportLog {
	return &reportLog{cfg: cfg, log: log, oldRules: map[string]bool{}}
}

const maxLines = 200

func (l *reportLog) observe(r *Report) {
	if r.Drift > 0 {
		l.log.Warn("kernel state drifted; repairing", zap.Int("differences", r.Drift), zap.Strings("found", foundTexts(r.Drifted)))
	}
	for _, d := range r.NewlyDrained {
		l.log.Info("endpoint drained: its weight is 0 and no connections remain through this node",
			zap.Stringer("service", d.Service), zap.Stringer("server", d.Server), zap.Stringer("endpoint", d.Endpoint))
	}
	changes := l.logResults(r)
	l.logOldRules(r)
	l.logProblems(r)
	if r.Err != nil {
		l.log.Error("sync failed; retrying", zap.Error(r.Err), zap.Duration("after", r.RetryAfter))
	}
	if r.Waiting != nil {
		l.log.Info("writing the rules is taking a long time; Services that need them are waiting", zap.Error(r.Waiting))
	}
	if r.Complete() && !l.synced {
		l.synced = true
		l.log.Info("initial sync complete", zap.Int("services", r.Services), zap.Int("changes", changes), zap.Duration("took", r.Duration))
	}
}

// maxFound is the maximum number of findings in a log line. Flushing all tables causes two findings per chain.
const maxFound = 8

func foundTexts(found []contest.Finding) []string {
	texts := make([]string, 0, maxFound+1)
	for _, f := range found[:min(len(found), maxFound)] {
		texts = append(texts, f.String())
	}
	if more := len(found) - maxFound; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return texts
}

func (l *reportLog) logOldRules(r *Report) {
	if r.OldRulesErr != nil {
		l.warnOfOldRules("searching for rules left in another rule layer failed; retrying", r.OldRulesErr)
	}
	for _, result := range r.OldRules {
		if result.Err != nil {
			l.warnOfOldRules("removing old rules failed; retrying", result.Err)
			continue
		}
		l.log.Info("removed old rules", zap.Stringer("op", result.Op))
	}
}

func (l *reportLog) warnOfOldRules(what string, err error) {
	if text := err.Error(); !l.oldRules[text] {
		l.oldRules[text] = true
		l.log.Warn(what, zap.Error(err))
	}
}

func (l *reportLog) logResults(r *Report) int {
	mode := l.cfg.Compile.Mode
	changes, failures, failed := 0, 0, map[string]bool{}
	for _, result := range r.Results {
		switch {
		case result.Skipped:
			l.log.Debug("operation skipped", zap.String("op", result.Op.In(mode)), zap.Error(result.Err))
		case result.Unfinished(): // shown in the report
		case result.Refused():
			l.log.Debug("operation refused", zap.String("op", result.Op.In(mode)), zap.Error(result.Err)) // logged once, as a Problem
		case result.Err != nil:
			// Log a failure once, not on every retry.
			line := result.Op.In(mode) + ": " + result.Err.Error()
			logged := failed[line] || l.failed[line]
			if failed[line] = true; logged {
				continue
			}
			if failures++; failures <= maxLines {
				l.log.Error("operation failed", zap.String("op", result.Op.In(mode)), zap.Error(result.Err))
			}
		default:
			if changes++; changes <= maxLines {
				l.log.Info(result.Op.In(mode))
			}
		}
	}
	if changes > maxLines {
		l.log.Info("more changes, not listed", zap.Int("changes", changes-maxLines))
	}
	if failures > maxLines {
		l.log.Error("more failures, not listed", zap.Int("failures", failures-maxLines))
	}
	if !r.Full { // an incremental sync does not retry other failures
		maps.Copy(failed, l.failed)
	}
	l.failed = failed
	return changes
}

func (l *reportLog) logProblems(r *Report) {
	for _, change := range r.ProblemChanges {
		for _, p := range change.Added {
			l.log.Warn(p.String())
		}
	}
	l.logForeign(r)
}

func (l *reportLog) logForeign(r *Report) {
	var lines []string
	for key, service := range r.Foreign {
		lines = append(lines, fmt.Sprintf("Service %s is not served at %s: a foreign virtual server exists there; "+
			"delete it (ipvsadm -D %s) or give the Service another address", service, key.Addr, key))
	}
	if r.Full {
		for _, key := range r.Leftovers.Servers {
			lines = append(lines, fmt.Sprintf("virtual server %s is on an address of %s, but belongs to no Service and is not in the ledger; "+
				"left alone (ipvsadm -D %s deletes it)", key, kernel.Device, key))
		}
		for _, addr := range r.Leftovers.Addresses {
			lines = append(lines, fmt.Sprintf("address %s on %s belongs to no Service and is not in the ledger; left alone "+
				"(ip addr del %s/%d dev %s deletes it)", addr, kernel.Device, addr, addr.BitLen(), kernel.Device))
		}
	}
	slices.Sort(lines)
	foreign := map[string]bool{}
	for _, line := range lines {
		if foreign[line] = true; !l.foreign[line] {
			l.log.Warn(line)
		}
	}
	if !r.Full { // an incremental sync does not look for leftovers
		maps.Copy(foreign, l.foreign)
	}
	l.foreign = foreign
}
