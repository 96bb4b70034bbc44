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
)

// New returns an agent that has not started.
func New(cfg Config, source Source, k Kernel, log *zap.Logger) *Agent {
	a := &Agent{
		cfg:      cfg,
		source:   source,
		kernel:   k,
		cluster:  compile.NewCluster(cfg.Compile),
		pending:  pending{addresses: true},
		known:    known.New(),
		schedule: &schedule.Schedule{Intervals: cfg.intervals()},
		ramps:    slowstart.New(),
		draining: drain.NewClocks(),
		stopped:  &drain.Stopped{},
		flows:    flows.New(),
		walks:    newWalks(k),
		requests: make(chan request),
		history:  newHistory(),
	}
	a.observers = []func(*Report){a.history.observe, newReportLog(log).observe}
	if cfg.Observe != nil {
		a.observers = append(a.observers, func(r *Report) { cfg.Observe(*r) })
	}
	return a
}

// Run works until the context ends. It leaves the kernel as it is, so Services keep working.
func (a *Agent) Run(ctx context.Context) {
	defer a.walks.wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.source.Changed():
		case <-a.cfg.KernelChanged:
			a.schedule.AuditSoon(a.contests.Distance(a.cfg.AuditInterval))
		case <-a.cfg.AddressesChanged:
			a.pending.addresses = true
		case settings := <-a.cfg.Reload:
			a.pending.settings = &settings
			a.schedule.AuditNow(time.Now())
		case r := <-a.requests:
			r.result <- a.snapshot(time.Now(), r.query)
			continue
		case w := <-a.walks.done:
			if news := a.walked(w); !news {
				timer.Reset(time.Until(a.nextWake()))
				continue
			}
		case <-timer.C:
		}
		if !a.source.Synced() {
			continue
		}
		if wait := a.schedule.Wait(time.Now()); wait > 0 {
			timer.Reset(wait)
			continue
		}
		a.sync(ctx)
		if ctx.Err() != nil {
			return
		}
		timer.Reset(time.Until(a.nextWake()))
	}
}

// nextWake is when the loop has something to do though nothing changes.
func (a *Agent) nextWake() time.Time {
	if a.known.State() == nil {
		return a.schedule.NextWake(a.draining.Next(), a.ramps.Next())
	}
	return a.schedule.NextWake(a.draining.Next(), a.ramps.Next(), a.flows.Next(), a.known.Refusals.Next())
}

// sync makes the kernel what the cluster asks for now, and reports.
func (a *Agent) sync(ctx context.Context) {
	s := a.newSync(time.Now())
	a.schedule.Begin(s.now)
	plan, err := s.reconcile(ctx)
	if ctx.Err() != nil {
		return // the agent stops: errors caused by that are no failures
	}
	s.finish(plan, err)
	s.removeOldRules(ctx)
	for _, observe := range a.observers {
		observe(s.report)
	}
}

// Plan returns what the next sync would do, and writes nothing.
func (a *Agent) Plan(ctx context.Context) (diff.Plan, error) {
	s := a.newSync(time.Now())
	changes := a.source.Take()
	if err := s.gather(ctx, changes); err != nil {
		return diff.Plan{}, err
	}
	s.compile(changes.Services)
	plan, err := s.plan(ctx)
	return plan, errors.Join(err, s.report.rulesErr)
}
