package agent

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/agent/drain"
	"github.com/kube-ipvs/kube-ipvs/internal/agent/flows"
	"github.com/kube-ipvs/kube-ipvs/internal/agent/known"
	"github.com/kube-ipvs/kube-ipvs/internal/agent/schedule"
	"github.com/kube-ipvs/kube-ipvs/internal/agent/slowstart"
	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// New returns an agent that has not started.
func New(cfg Config, source Source, k Kernel, log *zap.Logger) *Agent {
	a := &Agent{
		cfg:        cfg,
		source:     source,
		kernel:     k,
		cluster:    compile.NewCluster(cfg.Compile),
		pending:    pending{addresses: true, sync: true},
		known:      known.New(),
		schedule:   &schedule.Schedule{Intervals: cfg.intervals()},
		ramps:      slowstart.New(),
		draining:   drain.NewClocks(),
		stopped:    &drain.Stopped{},
		flows:      flows.New(cfg.Compile.Balancing),
		background: newBackground(),
		walks:      &walks{},
		checks:     &checks{},
		oldRules:   &oldRules{},
		requests:   make(chan func()),
		history:    newHistory(),
		partSize:   maxPart,
		log:        log,

		writingRules: map[inet.Family]bool{},
		stuck:        map[string]kernel.StuckError{},
		lastKnown:    newLastKnown(cfg.LastKnown),
		wayOut:       wayOut{due: time.Now().Add(wayOutInterval)},
	}
	a.target = diff.NewTarget(a.cluster.Want())
	a.cfg.LastKnown = nil // the state is dropped as soon as it is not needed any more
	a.observers = []func(*Report){a.history.observe, newReportLog(log).observe}
	if cfg.Observe != nil {
		a.observers = append(a.observers, func(r *Report) { cfg.Observe(*r) })
	}
	return a
}

// Run runs the agent until the context ends. It then leaves the kernel's state in place, so Services keep working.
func (a *Agent) Run(ctx context.Context) {
	defer a.background.wg.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.source.Changed():
			a.pending.sync = true
		case <-a.cfg.KernelChanged:
			a.schedule.AuditSoon(a.contests.Distance(a.cfg.AuditInterval))
		case <-a.cfg.AddressesChanged:
			a.pending.addresses, a.pending.sync, a.lastKnown.moved = true, true, true
		case settings := <-a.cfg.Reload:
			a.pending.settings, a.pending.sync = &settings, true
			a.schedule.AuditNow(time.Now())
		case take := <-a.requests:
			take()
			continue
		case take := <-a.background.ended:
			take()
		case <-timer.C:
		}
		if !a.source.Synced() {
			rearm(timer, schedule.Earliest(a.serveLastKnown(ctx), a.clearWay(ctx)))
			continue
		}
		a.lastKnown.state = nil
		a.work(ctx)
		if ctx.Err() != nil {
			return
		}
		rearm(timer, a.nextWake())
	}
}

// work starts a quick check, an audit and a sync, if they are due.
func (a *Agent) work(ctx context.Context) {
	now := time.Now()
	if at := a.nextCheck(); !at.IsZero() && !now.Before(at) {
		a.beginCheck(ctx, now)
	}
	if a.known.State() != nil && a.schedule.ReadDue(now) {
		a.beginAudit(ctx, now)
	}
	if at := a.nextSync(now); !at.IsZero() && !now.Before(at) {
		a.sync(ctx)
	}
}

// rearm sets a timer to fire at a time, or stops it if the time is zero.
func rearm(timer *time.Timer, at time.Time) {
	if at.IsZero() {
		timer.Stop()
		return
	}
	timer.Reset(time.Until(at))
}

// nextWake is when the loop must run without a change; zero if only a change can wake it.
func (a *Agent) nextWake() time.Time {
	if a.known.State() == nil {
		return a.nextSync(time.Now())
	}
	return a.schedule.NextWake(a.nextSync(time.Now()), a.nextCheck())
}

// nextSync is when the next sync starts without a change; zero if none does.
func (a *Agent) nextSync(now time.Time) time.Time {
	deadlines := []time.Time{a.draining.Next(), a.ramps.Next()}
	if a.known.State() == nil {
		deadlines = append(deadlines, a.schedule.NextWake()) // the sync reads the kernel itself
	} else {
		deadlines = append(deadlines, a.flows.Next(), a.known.Refusals.Next(), a.nextProbe())
	}
	return a.schedule.NextSync(now, a.pending.sync, deadlines...)
}

// sync brings the kernel to the wanted state and reports.
func (a *Agent) sync(ctx context.Context) {
	s := a.newSync(time.Now())
	s.audit = a.pending.audit
	a.pending.audit, a.pending.sync = nil, false
	a.schedule.Begin(s.now)
	plan, err := s.reconcile(ctx)
	if ctx.Err() != nil {
		return // the agent is stopping, which may have caused the error
	}
	s.finish(plan, err)
	s.removeOldRules(ctx)
	for _, observe := range a.observers {
		observe(s.report)
	}
}

// Plan returns what the next sync would do, without writing.
func (a *Agent) Plan(ctx context.Context) (diff.Plan, error) {
	s := a.newSync(time.Now())
	if err := s.gather(ctx, a.source.Take()); err != nil {
		return diff.Plan{}, err
	}
	s.compile()
	plan, err := s.plan(ctx)
	return plan, errors.Join(err, s.report.rulesErr.Err())
}
