package agent

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/agent/flows"
	"github.com/kube-ipvs/kube-ipvs/internal/agent/known"
	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// maxPart is the number of operations in a part. They take a fraction of a second, and a part's fixed costs are small in comparison.
const maxPart = 4096

// apply executes the plan in parts, so that the first Services on a new node do not wait for the last one. If changes arrive in the meantime,
// the next sync takes the remaining parts: its plan starts with the smallest changes, so these are in its first part (I14).
func (s *syncRun) apply(ctx context.Context, plan diff.Plan) {
	s.known.BeginPlan(s.target)
	s.report.Results = slices.Grow(s.report.Results, plan.Len())
	parts := plan.Parts(s.partSize, s.target, s.waited)
	for i, part := range parts {
		s.applyPart(ctx, part)
		if i == len(parts)-1 {
			break
		}
		if s.cfg.Checked != nil && !s.reads {
			s.cfg.Checked(time.Now()) // the rest may take minutes
		}
		if s.mustYield() {
			s.report.Interrupted, s.pending.touched = true, known.Objects(plan)
			s.waited = diff.Waiting(parts[i+1:], s.target, s.waited)
			return
		}
	}
	s.waited = nil
}

// mustYield reports whether changes wait that the next sync may apply now. The first sync, and those after a failure, run to their end: the
// agent is ready after that.
func (s *syncRun) mustYield() bool {
	if s.reads || s.schedule.Retrying() || s.schedule.Wait(time.Now()) > 0 {
		return false
	}
	select {
	case <-s.source.Changed():
		s.pending.sync = true
	default:
	}
	return s.pending.sync
}

// applyPart executes phase by phase. It skips operations that depend on a failed one (I8). A part that must stay whole may take long, so it
// answers requests meanwhile.
func (s *syncRun) applyPart(ctx context.Context, plan diff.Plan) {
	for _, phase := range plan.Phases {
		ops := make([]kernel.Op, 0, len(phase.Ops))
		for _, op := range phase.Ops {
			if err := s.known.Blocks(s.now, op); err != nil {
				s.report.Results = append(s.report.Results, Result{Op: op, Err: err, Skipped: true})
				s.known.Skipped(op, err)
				continue
			}
			ops = append(ops, op)
		}
		for some := range slices.Chunk(ops, s.partSize) {
			s.write(ctx, some)
			s.answer()
		}
	}
}

// write executes operations that do not depend on each other, and records their results.
func (s *syncRun) write(ctx context.Context, ops []kernel.Op) {
	if len(ops) == 0 {
		return
	}
	var existing []kernel.ServerKey
	succeeded := make([]kernel.Op, 0, len(ops))
	apply := s.kernel.Apply
	if ops[0].KindOf() == kernel.KindRules { // the rules have phases of their own
		apply = s.writeRules
	}
	for i, err := range apply(ctx, ops) {
		s.report.Results = append(s.report.Results, Result{Op: ops[i], Err: err})
		if err == nil {
			succeeded = append(succeeded, ops[i])
			continue
		}
		s.known.Failed(s.now, ops[i], err, s.target)
		if server, ok := ops[i].Object.(kernel.Server); ok && ops[i].Verb == kernel.Create && errors.Is(err, kernel.ErrExists) {
			existing = append(existing, server.Key)
		}
	}
	s.known.Succeeded(succeeded...)
	s.write(ctx, s.disown(existing))
}

// disown gives up virtual servers that another program created after the agent's lookup: their owner records, which this sync has written,
// are wrong. An older owner record is right: the other program has replaced a virtual server of ours, and that is drift.
func (s *syncRun) disown(existing []kernel.ServerKey) (undo []kernel.Op) {
	if len(existing) == 0 {
		return nil
	}
	claimed := map[kernel.Object]bool{}
	for _, r := range s.report.Results {
		if _, member := r.Op.Object.(kernel.Member); member && r.Op.Verb == kernel.Create && r.Err == nil {
			claimed[r.Op.Object] = true
		}
	}
	for _, key := range existing {
		if entry := want.LedgerEntry(s.target.Base().Ledger, key); claimed[entry] {
			s.known.Contest(key)
			undo = append(undo, kernel.Op{Verb: kernel.Delete, Object: entry})
		}
	}
	return undo
}

// checkFlows takes over the result of the last walk, and starts the next walk if tracked connections may be stale.
func (s *syncRun) checkFlows(ctx context.Context) {
	s.report.EndedFlows = s.walks.takeEnded()
	if s.report.Full {
		s.flows.Verified()
	}
	for _, r := range s.report.Results {
		if !r.Skipped {
			s.flows.Note(r.Op, r.Err, s.known.State())
		}
	}
	if s.flows.Due(s.now) {
		s.startWalk(ctx, s.flows.Begin(flows.Surroundings{Have: s.known.State(), Ours: s.known.Ours, Ports: s.target.Ports}))
	}
}
