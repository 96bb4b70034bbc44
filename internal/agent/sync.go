package agent

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/agent/drain"
	"github.com/kube-ipvs/kube-ipvs/internal/agent/flows"
	"github.com/kube-ipvs/kube-ipvs/internal/agent/schedule"
	"github.com/kube-ipvs/kube-ipvs/internal/diff"
)

// reconcile compiles, plans and applies.
func (s *syncRun) reconcile(ctx context.Context) (diff.Plan, error) {
	changes := s.source.Take()
	addressErr := s.gather(ctx, changes)
	if addressErr == nil {
		s.bootstrap(ctx, changes.Services)
	}
	s.compile(changes.Services)
	compiled := time.Now()
	s.report.Stages.Compile = compiled.Sub(s.now) - s.report.Stages.Bootstrap
	if addressErr != nil && s.known.State() == nil {
		// The node port addresses are not known at all: what an earlier agent left there must stay.
		s.postpone()
		return diff.Plan{}, addressErr
	}
	plan, err := s.plan(ctx)
	planned := time.Now()
	s.report.Stages.Plan = planned.Sub(compiled)
	if err != nil {
		s.postpone()
		return diff.Plan{}, errors.Join(err, addressErr)
	}
	s.apply(ctx, plan)
	s.checkFlows(ctx)
	s.report.Stages.Apply = time.Since(planned)
	return plan, errors.Join(s.report.firstError(), addressErr)
}

// postpone leaves the work of a sync without a plan to a later one.
func (s *syncRun) postpone() {
	s.known.Unverified().Add(s.touched)
	s.flows.Defer(s.now)
	if s.ramps.Due(s.now) {
		s.ramps.Retry(schedule.RetryStep(s.now))
	}
}

// finish schedules the next sync and completes the report.
func (s *syncRun) finish(plan diff.Plan, err error) {
	r := s.report
	r.Err = err
	s.scheduleNext()
	if r.flowsErr != nil {
		// What is known of the kernel stays valid, so it is not read again because of this.
		r.Err = errors.Join(err, r.flowsErr)
		r.RetryAfter = cmp.Or(r.RetryAfter, flows.Interval)
	}
	s.draining.Update(s.now, s.cfg.DrainInterval, drain.Pass{Want: s.cluster.Want(), Have: s.known.State(), Plan: plan, Full: r.Full})
	r.Draining = s.draining.Count()
	if err == nil {
		r.Programmed, s.pending.triggers = s.pending.triggers, nil
	}
	if r.Full && r.Err == nil {
		s.noteDrained()
	}
	r.Stopped, r.Drained = s.stopped.Count(), s.stopped.Drained()
	r.describe(s.cluster)
	r.Duration = time.Since(s.now)
}

// scheduleNext decides when the kernel is read again.
func (s *syncRun) scheduleNext() {
	failed := s.report.Err != nil
	s.schedule.Finish(schedule.Outcome{Started: s.now, Ended: time.Now(), Full: s.report.Full, Failed: failed})
	if failed {
		s.report.RetryAfter = time.Until(s.schedule.RetryAt())
	}
	if s.known.TakeInexact() {
		s.schedule.AuditNow(s.now)
	}
}

// noteDrained reports the endpoints that an operator has drained and that have no connection left since this sync.
func (s *syncRun) noteDrained() {
	for _, entry := range s.stopped.Update(s.cluster.Want(), s.known.State()) {
		s.report.NewlyDrained = append(s.report.NewlyDrained, DrainedEndpoint{
			Service: s.cluster.Want().Servers[entry.Server].Owner, Server: entry.Server, Endpoint: entry.Addr,
		})
	}
}
