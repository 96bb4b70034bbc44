package agent

import (
	"context"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// Run runs the agent until the context ends. It leaves the kernel's state in place, so Services keep working.
func (a *Agent) Run(ctx context.Context) {
	defer a.background.wg.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.reader.source.Changed():
			a.schedule.Request()
		case <-a.cfg.KernelChanged:
			a.schedule.AuditSoon(a.checks.distance())
		case <-a.cfg.AddressesChanged:
			a.reader.moved, a.startup.lastKnown.moved = true, true
			a.schedule.Request()
		case m := <-a.moves():
			a.move(m)
		case r := <-a.cfg.Reload:
			a.planner.changedSettings = append(a.planner.changedSettings, r.Changed...)
			a.reload(r.Settings)
		case take := <-a.background.requests:
			take()
			continue
		case take := <-a.background.ended:
			take()
		case <-timer.C:
		}
		if !a.reader.source.Synced() {
			rearm(timer, a.startup.work(ctx))
			continue
		}
		a.startup.end()
		a.work(ctx)
		if ctx.Err() != nil {
			return
		}
		rearm(timer, a.nextWake())
	}
}

func (a *Agent) work(ctx context.Context) {
	now := time.Now()
	known, k := a.planner.known, a.reader.kernel
	if at := a.checks.next(known); !at.IsZero() && !now.Before(at) {
		a.checks.start(ctx, a.background, now, k, known, a.schedule)
	}
	if known.State() != nil && a.schedule.ReadDue(now) {
		a.schedule.Read(now)
		a.checks.AuditBegins()
		a.audits.start(ctx, a.background, k, a.planner)
	}
	if at := a.nextSync(now); !at.IsZero() && !now.Before(at) {
		a.sync(ctx)
	}
}

func rearm(timer *time.Timer, at time.Time) {
	if at.IsZero() {
		timer.Stop()
		return
	}
	timer.Reset(time.Until(at))
}

// nextWake returns the time at which the loop must run even without a change. Zero means never.
func (a *Agent) nextWake() time.Time {
	if a.planner.known.State() == nil {
		return a.nextSync(time.Now())
	}
	return a.schedule.NextWake(a.nextSync(time.Now()), a.checks.next(a.planner.known))
}

func (a *Agent) nextSync(now time.Time) time.Time {
	p := a.planner
	if p.known.State() == nil {
		return a.schedule.NextSync(now, a.schedule.NextWake()) // the first sync itself reads the kernel
	}
	return a.schedule.NextSync(now, p.draining.Next(), p.ramps.Next(), a.walks.flows.Next(), p.known.Refusals.Next(), a.reader.nextProbe(p.cluster))
}

// Preview returns what the agent would serve, and the kernel's current state. It writes nothing.
func (a *Agent) Preview(ctx context.Context) (v *view.View, have *kernel.State, err error) {
	if _, err := a.Plan(ctx); err != nil {
		return nil, nil, err
	}
	s := a.snapshot(time.Now(), Query{})
	s.Services = a.snapshotServices(s.Compiled)
	return s.View(), a.planner.known.State(), nil
}

// Plan returns the plan of the next sync but does not apply it.
func (a *Agent) Plan(ctx context.Context) (diff.Plan, error) {
	_, plan, err := a.once(ctx, time.Now(), a.reader.source.Take())
	return plan, err
}
