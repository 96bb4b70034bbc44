package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/agent/known"
	"github.com/kube-ipvs/kube-ipvs/internal/agent/quickcheck"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// checks read summaries of the kernel outside the loop, one at a time.
type checks struct {
	quickcheck.Checks
	running bool
	// last is when the latest check began.
	last time.Time
	// failed counts consecutive failed checks; err is the error of the latest.
	failed int
	err    error
}

// check is a finished check.
type check struct {
	began   time.Time
	asked   []kernel.ServerKey
	writes  known.Writes
	summary *kernel.Summary
	err     error
}

// watch reports whether quick checks are enabled and succeed.
func (c *checks) watch(interval time.Duration) bool {
	return interval > 0 && c.failed == 0 && !(c.running && time.Since(c.last) > tooLong)
}

// nextCheck is when the next quick check begins; zero while one runs or if they are off.
func (a *Agent) nextCheck() time.Time {
	if a.cfg.CheckInterval == 0 || a.checks.running || a.known.State() == nil {
		return time.Time{}
	}
	return a.checks.last.Add(a.cfg.CheckInterval)
}

// beginCheck starts to read a summary outside the loop.
func (a *Agent) beginCheck(ctx context.Context, now time.Time) {
	c := check{began: now, asked: a.checks.Next(a.known.State().Servers), writes: a.known.Writes()}
	a.checks.running, a.checks.last = true, now
	a.background.start(func() func() {
		c.summary, c.err = a.kernel.Summarize(ctx, c.asked)
		return func() { a.takeCheck(c) }
	})
}

// takeCheck compares a summary with the known state, and requests an audit if they differ.
func (a *Agent) takeCheck(c check) {
	a.checks.running = false
	if c.err != nil {
		a.checks.failed, a.checks.err = a.checks.failed+1, c.err
		a.schedule.AuditSoon(a.cfg.AuditInterval) // without checks, only audits find changes
		return
	}
	a.checks.failed = 0
	if audits := a.schedule.Reading(c.began); a.cfg.Checked != nil && audits < tooLong { // an audit that never ends is a failure
		a.cfg.Checked(c.began)
	}
	now := a.known.Writes()
	skip := [quickcheck.Parts]bool{
		quickcheck.Servers: c.writes.Servers != now.Servers,
		quickcheck.Sets:    c.writes.Sets != now.Sets,
		quickcheck.Rules:   c.writes.Rules != now.Rules,
		quickcheck.Sysctls: c.writes.Sysctls != now.Sysctls,
	}
	known := quickcheck.Known{State: a.known.State(), IPv4Servers: a.known.IPv4Servers()}
	if a.checks.Judge(c.began, quickcheck.Compare(known, c.asked, c.summary, skip), skip) {
		a.schedule.AuditSoon(max(a.contests.Distance(a.cfg.AuditInterval), a.checks.Distance()))
	}
}

// manyChecks is how many consecutive quick checks must fail to be a Problem.
const manyChecks = 3

// unended is the Problem of work that has not ended.
func (a *Agent) unended(what string, age time.Duration, effect string) model.Problem {
	return model.Problem{
		Object: model.NodeRef(a.cfg.Compile.NodeName), Field: what,
		Reason: fmt.Sprintf("the last one has not ended for %s; %s", age.Round(time.Minute), effect),
		Remedy: "look for a hung call in the kernel's log, and restart the agent",
	}
}

// checkProblems returns the Problem that quick checks fail, or do not end. Full syncs report what is wrong with the kernel itself.
func (a *Agent) checkProblems() []model.Problem {
	if age := time.Since(a.checks.last); a.checks.running && age > tooLong {
		return []model.Problem{a.unended("quick checks", age, "only full syncs repair changes by other programs")}
	}
	if a.checks.failed < manyChecks {
		return nil
	}
	return []model.Problem{{
		Object: model.NodeRef(a.cfg.Compile.NodeName), Field: "quick checks",
		Reason: fmt.Sprintf("failing (%v); only full syncs, every %s, repair changes by other programs", a.checks.err, a.cfg.AuditInterval),
		Remedy: "allow the failed operation, or use --ipvs-check-period=0 to turn quick checks off",
	}}
}
