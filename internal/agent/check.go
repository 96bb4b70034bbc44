package agent

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/agent/known"
	"github.com/kube-ipvs/kube-ipvs/internal/agent/quickcheck"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// checks read summaries of the kernel beside the loop, one at a time.
type checks struct {
	quickcheck.Checks
	kernel  Kernel
	done    chan check
	running bool
	// last is when the last one began.
	last time.Time
	// failed counts the last ones in a row that failed, the last with err.
	failed int
	err    error
	wg     sync.WaitGroup
}

// check is a finished one.
type check struct {
	began   time.Time
	asked   []kernel.ServerKey
	writes  known.Writes
	summary *kernel.Summary
	err     error
}

func newChecks(k Kernel) *checks { return &checks{kernel: k, done: make(chan check, 1)} }

// wait returns when no check runs.
func (c *checks) wait() { c.wg.Wait() }

// watch reports whether quick checks are made, and succeed.
func (c *checks) watch(interval time.Duration) bool { return interval > 0 && c.failed == 0 }

// nextCheck is when the next quick check begins; zero while one runs, and if there are none.
func (a *Agent) nextCheck() time.Time {
	if a.cfg.CheckInterval == 0 || a.checks.running || a.known.State() == nil {
		return time.Time{}
	}
	return a.checks.last.Add(a.cfg.CheckInterval)
}

// beginCheck reads a summary beside the loop.
func (a *Agent) beginCheck(ctx context.Context, now time.Time) {
	c := check{began: now, asked: a.checks.Next(a.known.State().Servers), writes: a.known.Writes()}
	a.checks.running, a.checks.last = true, now
	a.checks.wg.Go(func() {
		c.summary, c.err = a.checks.kernel.Summarize(ctx, c.asked)
		a.checks.done <- c
	})
}

// takeCheck compares a summary with what is known, and makes an audit due if they differ.
func (a *Agent) takeCheck(c check) {
	a.checks.running = false
	if c.err != nil {
		a.checks.failed, a.checks.err = a.checks.failed+1, c.err
		a.schedule.AuditSoon(a.cfg.AuditInterval) // nothing else finds a change now
		return
	}
	a.checks.failed = 0
	if audits := a.schedule.Reading(c.began); a.cfg.Checked != nil && audits < checkedPeriod { // an audit that never ends is a failure
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

// manyChecks is how many quick checks in a row must fail to be a Problem.
const manyChecks = 3

// checkProblems is the Problem that quick checks fail. What is wrong with the kernel itself, full syncs say.
func (a *Agent) checkProblems() []model.Problem {
	if a.checks.failed < manyChecks {
		return nil
	}
	return []model.Problem{{
		Object: model.NodeRef(a.cfg.Compile.NodeName), Field: "quick checks",
		Reason: fmt.Sprintf("they fail (%v); changes by other programs are repaired by full syncs only, every %s", a.checks.err, a.cfg.AuditInterval),
		Remedy: "allow what failed, or turn quick checks off (--ipvs-check-period=0)",
	}}
}
