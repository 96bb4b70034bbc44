package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/agent/flows"
	"github.com/kube-ipvs/kube-ipvs/internal/agent/schedule"
	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

func (a *Agent) sync(ctx context.Context) {
	s := a.begin(time.Now())
	s.audit, a.audits.ended = a.audits.ended, nil
	a.schedule.Begin(s.now)
	plan, err := a.reconcile(ctx, s)
	if ctx.Err() != nil {
		return // the agent is stopping, which may have caused the error
	}
	a.finish(s, plan, err)
	a.endMove(s.report)
	a.oldRules.start(ctx, a.background, a.reader.kernel, s.report, a.schedule.Request)
}

func (a *Agent) reconcile(ctx context.Context, s *syncRun) (diff.Plan, error) {
	p, r := a.planner, s.report
	r.Results, a.writer.lateRules = a.writer.lateRules, nil
	changes := a.reader.source.Take()
	s.noteCauses(p, changes, a.reader.moved, a.schedule.Retrying())
	failed := a.reader.gather(ctx, s, p.cluster, p.known, changes)
	a.reports.take(changes, r)
	r.Stages.Gather = time.Since(s.now)
	if failed.addresses != nil && p.known.State() == nil {
		// Without the node's addresses, the agent cannot tell which node port frontends to keep. It must not compile
		// either, because a compiled claim counts as served from then on (I17).
		a.postpone(s)
		return diff.Plan{}, failed.addresses
	}
	if s.reads {
		if err := a.reader.kernel.AdoptRecords(ctx); err != nil {
			a.postpone(s)
			return diff.Plan{}, errors.Join(err, failed.err())
		}
	}
	if failed.addresses == nil {
		a.bootstrap(ctx, s)
	}
	p.compile(s)
	compiled := time.Now()
	r.Stages.Compile = compiled.Sub(s.now) - r.Stages.Bootstrap
	plan, err := p.plan(ctx, a.reader.kernel, s)
	if err == nil {
		err = p.checkInherited(s, plan)
	}
	planned := time.Now()
	r.Stages.Plan = planned.Sub(compiled)
	if err != nil {
		r.Full = false
		a.postpone(s)
		return diff.Plan{}, errors.Join(err, failed.err())
	}
	a.writer.apply(ctx, s, p, plan)
	p.waiting = r.firstUnfinished() != nil || p.waiting && !r.Full
	if r.Full {
		p.reconfigured = false
		a.checks.countDrift(s, p.ramps)
	}
	a.checkFlows(ctx, s)
	r.Stages.Apply = time.Since(planned)
	return plan, errors.Join(r.firstError(), p.prevailingRefusal(), failed.err(), s.audit.failure())
}

func (a *Agent) postpone(s *syncRun) {
	a.planner.postpone(s)
	a.walks.flows.Defer(s.now)
}

func (a *Agent) checkFlows(ctx context.Context, s *syncRun) {
	p, f := a.planner, a.walks.flows
	s.report.EndedFlows = a.walks.takeEnded()
	if s.report.Full {
		f.Verified()
	}
	for _, r := range s.report.Results {
		if !r.Skipped {
			f.Note(r.Op, r.Err, p.known.State())
		}
	}
	if restored := p.known.TakeRestored(); restored || a.writer.wroteRules {
		a.writer.wroteRules = false
		f.Unmasqueraded()
	}
	if f.Due(s.now) {
		around := flows.Surroundings{
			Have: p.known.State(), Ours: p.known.Ours, Ports: p.target.Ports,
			Masquerades: func(port kernel.ServerKey) bool { return a.cfg.Compile.MasqueradesAll(p.known.State(), port) },
		}
		a.walks.start(ctx, a.background, a.reader.kernel, around, a.schedule.Request)
	}
}

func (a *Agent) finish(s *syncRun, plan diff.Plan, err error) {
	r := s.report
	if age := a.schedule.Reading(s.now); age > tooLong && s.audit == nil {
		err = errors.Join(err, fmt.Errorf("an audit has been running for %s; changes by other programs are not repaired until it ends", age.Round(time.Second)))
	}
	r.Err, r.Waiting = err, r.firstUnfinished()
	a.oldRules.report(r)
	if a.planner.cluster.Behind() {
		a.schedule.Request()
	}
	waits, rulesErr := r.rulesFailure()
	if !waits {
		r.Err = errors.Join(err, rulesErr)
	}
	a.scheduleNext(s)
	if waits && rulesErr != nil { // needs no retry
		r.Err = errors.Join(err, rulesErr)
		r.RetryAfter = cmp.Or(r.RetryAfter, a.cfg.AuditInterval)
	}
	a.planner.finish(s, plan)
	a.describeProblems(r)
	r.Kind = s.kind()
	r.Duration = time.Since(s.now)
	a.reports.finish(r, err == nil)
}

func (a *Agent) describeProblems(r *Report) {
	refusals := a.planner.known.Refusals
	refused := refusals.Problems()
	r.Problems = map[model.ServiceID][]model.Problem{}
	for _, id := range slices.Concat(r.Compiled, refusals.TakeChanged()) {
		r.Problems[id] = slices.Concat(a.planner.cluster.Problems(id), refused[id])
	}
	r.NodeProblems = a.nodeProblems()
}

func (a *Agent) scheduleNext(s *syncRun) {
	failed := s.report.Err != nil
	outcome := schedule.Outcome{Started: s.now, Ended: time.Now(), Full: s.full(), Failed: failed}
	if s.audit != nil {
		outcome.Calm, outcome.Took = s.report.Drift == 0 && a.checks.watch(), s.audit.took
	}
	a.schedule.Finish(outcome)
	s.report.NextAudit = a.schedule.Distance()
	if failed {
		s.report.RetryAfter = time.Until(a.schedule.RetryAt())
	}
	known, held := a.planner.known, a.planner.inherited.until
	switch {
	case known.TakeInexact():
		a.schedule.AuditNow(s.now)
	case known.State() == nil && held.After(s.now):
		a.schedule.AuditNow(held)
	}
}
