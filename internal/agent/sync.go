package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/agent/contest"
	"github.com/kube-ipvs/kube-ipvs/internal/agent/drain"
	"github.com/kube-ipvs/kube-ipvs/internal/agent/schedule"
	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// reconcile compiles, plans and applies.
func (s *syncRun) reconcile(ctx context.Context) (diff.Plan, error) {
	s.report.Results, s.pending.lateRules = s.pending.lateRules, nil
	addressErr := s.gather(ctx, s.source.Take())
	if addressErr != nil && s.known.State() == nil {
		// The node port addresses are unknown, so nothing that an earlier agent left there may be removed. And a claim that is compiled
		// counts as served from then on (I17).
		s.postpone()
		return diff.Plan{}, addressErr
	}
	if addressErr == nil {
		s.bootstrap(ctx)
	}
	s.compile()
	compiled := time.Now()
	s.report.Stages.Compile = compiled.Sub(s.now) - s.report.Stages.Bootstrap
	plan, err := s.plan(ctx)
	if err == nil {
		err = s.checkInherited(plan)
	}
	planned := time.Now()
	s.report.Stages.Plan = planned.Sub(compiled)
	if err != nil {
		s.postpone()
		return diff.Plan{}, errors.Join(err, addressErr, s.listenersErr)
	}
	s.apply(ctx, plan)
	s.countDrift()
	s.checkFlows(ctx)
	s.report.Stages.Apply = time.Since(planned)
	return plan, errors.Join(s.report.firstError(), s.prevailingRefusal(), addressErr, s.listenersErr, s.auditErr())
}

// countDrift counts the differences that an audit found and nothing explains. Differences due to refused objects are expected.
func (s *syncRun) countDrift() {
	if !s.report.Full {
		return
	}
	s.pending.reconfigured = false
	var repairs []kernel.Op
	repaired := false
	for _, r := range s.report.Results {
		repaired = repaired || r.Err == nil
		unexplained := s.unexplained || s.rulesUnexplained && r.Op.KindOf() == kernel.KindRules
		if unexplained && !r.Skipped && !r.Refused() && !errors.Is(r.Err, errOccupied) && diff.IsRepair(r.Op) && !s.ramps.IsStep(r.Op) {
			repairs = append(repairs, r.Op)
		}
	}
	s.report.Drifted = contest.Find(repairs, s.rulesRead, s.sysctlsRead)
	for _, f := range s.report.Drifted {
		s.report.Drift += f.Count
	}
	s.contests.Audit(s.now, s.cfg.AuditInterval, s.report.Drifted)
	s.checks.AuditEnds(repaired)
}

// fewRefusals is how many Services may have refused objects without the node being at fault, even if there are few Services.
const fewRefusals = 2

// prevailingRefusal returns an error if the kernel refuses objects of most Services, in most namespaces, for one reason: the node is then at
// fault, not the Services. One namespace's author cannot trigger this.
func (s *syncRun) prevailingRefusal() error {
	most := s.known.Refusals.Prevailing()
	if most.Services <= fewRefusals || 2*most.Services <= s.cluster.Services() || 2*most.Namespaces <= s.cluster.Namespaces() {
		return nil
	}
	return fmt.Errorf("the kernel refuses objects of %d of %d Services, for example: %w", most.Services, s.cluster.Services(), most.Err)
}

// postpone leaves the work of a sync without a plan to a later sync.
func (s *syncRun) postpone() {
	s.known.Postpone(s.touched)
	s.flows.Defer(s.now)
	s.ramps.Retry(s.now, schedule.RetryStep(s.now))
}

// finish schedules the next sync and completes the report.
func (s *syncRun) finish(plan diff.Plan, err error) {
	r := s.report
	if age := s.schedule.Reading(s.now); age > tooLong && s.audit == nil {
		err = errors.Join(err, fmt.Errorf("an audit has not ended for %s; until it does, changes by other programs stay", age.Round(time.Second)))
	}
	r.Err, r.Waiting = err, r.firstUnfinished()
	old := s.oldRules.takeNews()
	r.OldRules, r.OldRulesErr = old.results, old.err
	s.noteStuck()
	s.pending.sync = s.pending.sync || s.cluster.Behind()
	waits, rulesErr := r.rulesFailure()
	if !waits {
		r.Err = errors.Join(err, rulesErr)
	}
	s.scheduleNext()
	if waits && rulesErr != nil { // needs no retry
		r.Err = errors.Join(err, rulesErr)
		r.RetryAfter = cmp.Or(r.RetryAfter, s.cfg.AuditInterval)
	}
	s.known.Refusals.Postpone(s.now)
	s.draining.Update(s.now, s.cfg.DrainInterval, drain.Pass{Target: s.target, Have: s.known.State(), Plan: plan, Full: s.comparedAll})
	r.Draining = s.draining.Count()
	if err == nil && r.Waiting == nil && !r.Interrupted {
		r.Programmed, s.pending.triggers = s.pending.triggers, nil
	}
	if r.Full && r.Err == nil {
		s.noteDrained()
	}
	r.Stopped, r.Drained = s.stopped.Count(), s.stopped.Drained()
	r.describe(s.cluster, s.target)
	s.describeProblems()
	r.Duration = time.Since(s.now)
}

// describeProblems adds the Problems that may have changed: those of objects, and those of objects that the kernel refuses.
func (s *syncRun) describeProblems() {
	refused := s.known.Refusals.Problems()
	s.report.Problems = map[model.ServiceID][]model.Problem{}
	for _, id := range slices.Concat(s.report.Compiled, s.known.Refusals.TakeChanged()) {
		s.report.Problems[id] = slices.Concat(s.cluster.Problems(id), refused[id])
	}
	s.report.NodeProblems = s.nodeProblems()
}

// scheduleNext decides when the kernel is next read.
func (s *syncRun) scheduleNext() {
	failed := s.report.Err != nil
	outcome := schedule.Outcome{Started: s.now, Ended: time.Now(), Full: s.full(), Failed: failed}
	if s.audit != nil {
		outcome.Calm, outcome.Took = s.report.Drift == 0 && s.checks.watch(s.cfg.CheckInterval), s.audit.took
	}
	s.schedule.Finish(outcome)
	if failed {
		s.report.RetryAfter = time.Until(s.schedule.RetryAt())
	}
	switch {
	case s.known.TakeInexact():
		s.schedule.AuditNow(s.now)
	case s.known.State() == nil && s.inherited.until.After(s.now):
		s.schedule.AuditNow(s.inherited.until)
	}
}

// noteDrained reports the endpoints that an operator drains and whose last connection has ended since the previous full sync.
func (s *syncRun) noteDrained() {
	for _, entry := range s.stopped.Update(s.target, s.known.State()) {
		s.report.NewlyDrained = append(s.report.NewlyDrained, DrainedEndpoint{
			Service: s.target.Server(entry.Server).Owner, Server: entry.Server, Endpoint: entry.Addr,
		})
	}
}
