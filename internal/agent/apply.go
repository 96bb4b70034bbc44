package agent

import (
	"context"
	"errors"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/agent/flows"
	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// partSize is a number of operations that take a fraction of a second. The fixed costs of a part are small beside it.
const partSize = 4096

// apply executes the plan part by part: on a new node, the first Services do not wait for the last one.
func (s *syncRun) apply(ctx context.Context, plan diff.Plan) {
	s.known.BeginPlan(s.cluster.Want())
	s.report.Results = slices.Grow(s.report.Results, plan.Len())
	for _, part := range plan.Parts(partSize) {
		s.applyPart(ctx, part)
	}
}

// applyPart executes phase by phase. What builds on a failed operation is skipped (I8).
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
		s.write(ctx, ops)
	}
}

// write executes operations that do not depend on each other, and notes the results.
func (s *syncRun) write(ctx context.Context, ops []kernel.Op) {
	if len(ops) == 0 {
		return
	}
	var undo []kernel.Op
	succeeded := make([]kernel.Op, 0, len(ops))
	for i, err := range s.kernel.Apply(ctx, ops) {
		s.report.Results = append(s.report.Results, Result{Op: ops[i], Err: err})
		if err == nil {
			succeeded = append(succeeded, ops[i])
			continue
		}
		s.known.Failed(s.now, ops[i], err, s.cluster.Want())
		if server, ok := ops[i].Object.(kernel.Server); ok && ops[i].Verb == kernel.Create && errors.Is(err, kernel.ErrExists) {
			// Another program created it after the agent had looked, so the ledger entry is wrong.
			s.known.Contest(server.Key)
			undo = append(undo, kernel.Op{Verb: kernel.Delete, Object: want.LedgerEntry(s.cluster.Want().Base.Ledger, server.Key)})
		}
	}
	s.known.Succeeded(succeeded...)
	s.write(ctx, undo)
}

// checkFlows takes over what the last walk did, and starts the next one if tracked connections may be stale.
func (s *syncRun) checkFlows(ctx context.Context) {
	s.report.EndedFlows, s.report.flowsErr = s.walks.takeResult()
	if s.report.Full {
		s.flows.Verified()
	}
	for _, r := range s.report.Results {
		if !r.Skipped {
			s.flows.Note(r.Op, r.Err, s.known.State())
		}
	}
	if s.flows.Due(s.now) {
		s.walks.start(ctx, s.flows.Begin(flows.Surroundings{Have: s.known.State(), Ours: s.known.Ours, Ports: s.cluster.Want().Ports}))
	}
}
