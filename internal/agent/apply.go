package agent

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/agent/known"
	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// apply executes the plan in parts, so that on a new node, the first Services do not wait for the last ones. A sync
// that ends early leaves the remaining parts to the next sync, whose plan starts with the smallest changes (I14).
func (w *writer) apply(ctx context.Context, s *syncRun, p *planner, plan diff.Plan) {
	p.known.BeginPlan(p.target)
	s.report.Results = slices.Grow(s.report.Results, plan.Len())
	parts := plan.Parts(w.partSize, p.target, w.waited)
	for i, part := range parts {
		w.applyPart(ctx, s, p, part)
		if i == len(parts)-1 {
			break
		}
		if w.cfg.Checked != nil && !s.reads {
			w.cfg.Checked(time.Now()) // a sign of life, because the remaining parts may take minutes
		}
		if w.mustYield(s) {
			s.report.Partial, p.left = true, known.Objects(plan)
			w.waited = diff.Waiting(parts[i+1:], p.target, w.waited)
			return
		}
	}
	w.waited = nil
}

// mustYield reports whether the sync must end early because changes are waiting. The first sync, and a sync after a
// failure, never end early, because the agent is not ready until they are complete. If the first sync waits for rules, a
// later full sync may end early, and does not make the agent ready.
func (w *writer) mustYield(s *syncRun) bool {
	if s.reads || w.schedule.Retrying() || w.schedule.Wait(time.Now()) > 0 {
		return false
	}
	select {
	case <-w.source.Changed():
		w.schedule.Request()
	default:
	}
	return w.schedule.Requested()
}

// applyPart skips operations that depend on a failed one (I8).
func (w *writer) applyPart(ctx context.Context, s *syncRun, p *planner, plan diff.Plan) {
	for _, phase := range plan.Phases {
		ops := make([]kernel.Op, 0, len(phase.Ops))
		for _, op := range phase.Ops {
			if err := p.known.Blocks(s.now, op); err != nil {
				s.report.Results = append(s.report.Results, Result{Op: op, Err: err, Skipped: true})
				p.known.Skipped(op, err)
				continue
			}
			ops = append(ops, op)
		}
		for some := range slices.Chunk(ops, w.partSize) {
			w.write(ctx, s, p, some)
			w.background.answer()
		}
		if w.alone && slices.ContainsFunc(s.report.Results, Result.failed) {
			return
		}
	}
}

func (w *writer) write(ctx context.Context, s *syncRun, p *planner, ops []kernel.Op) {
	if len(ops) == 0 {
		return
	}
	var existing []kernel.ServerKey
	succeeded := make([]kernel.Op, 0, len(ops))
	apply := w.kernel.Apply
	if ops[0].KindOf() == kernel.KindRules && !w.alone {
		apply = w.writeRules
	}
	for i, err := range apply(ctx, ops) {
		s.report.Results = append(s.report.Results, Result{Op: ops[i], Err: err})
		if err == nil {
			succeeded = append(succeeded, ops[i])
			continue
		}
		p.known.Failed(s.now, ops[i], err, p.target)
		if server, ok := ops[i].Object.(kernel.Server); ok && ops[i].Verb == kernel.Create && errors.Is(err, kernel.ErrExists) {
			existing = append(existing, server.Key)
		}
	}
	p.known.Succeeded(succeeded...)
	w.write(ctx, s, p, w.disown(s, p, existing))
}

// disown gives up virtual servers that another program created after the agent's lookup. This sync has written wrong
// owner records for them. An older owner record stays, because it means that the other program replaced one of the
// agent's virtual servers, which is drift.
func (w *writer) disown(s *syncRun, p *planner, existing []kernel.ServerKey) (undo []kernel.Op) {
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
		if entry := want.LedgerEntry(p.target.Base().Ledger, key); claimed[entry] {
			p.known.Contest(key)
			undo = append(undo, kernel.Op{Verb: kernel.Delete, Object: entry})
		}
	}
	return undo
}
