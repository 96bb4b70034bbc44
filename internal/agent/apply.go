package agent

import (
	"context"
	"errors"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// apply does the plan phase by phase. What builds on something that failed is skipped (I8).
func (a *Agent) apply(ctx context.Context, plan diff.Plan, report *Report) {
	if a.failures == nil {
		a.failures = diff.NewFailures(a.cluster.Want(), a.have)
	} else {
		a.failures = a.failures.Next()
	}
	report.Results = slices.Grow(report.Results, plan.Len())
	for _, phase := range plan.Phases {
		var ops []kernel.Op
		for _, op := range phase.Ops {
			if err := a.failures.Blocks(op); err != nil {
				report.Results = append(report.Results, Result{Op: op, Err: err, Skipped: true})
				a.failures.Add(op, err)
				continue
			}
			ops = append(ops, op)
		}
		a.write(ctx, ops, report)
	}
}

// write does operations that need nothing of each other, and notes what came of them.
func (a *Agent) write(ctx context.Context, ops []kernel.Op, report *Report) {
	if len(ops) == 0 {
		return
	}
	var undo []kernel.Op
	for i, err := range a.kernel.Apply(ctx, ops) {
		report.Results = append(report.Results, Result{Op: ops[i], Err: err})
		if err == nil {
			a.advance(ops[i])
			continue
		}
		if sysctl, ok := ops[i].Object.(kernel.SysctlSetting); ok && sysctl.Optional {
			a.unsettable[sysctl] = true
		}
		a.noteLack(err)
		a.doubtful.add(ops[i])
		a.failures.Add(ops[i], err)
		if server, ok := ops[i].Object.(kernel.Server); ok && ops[i].Verb == kernel.Create && errors.Is(err, kernel.ErrExists) {
			undo = append(undo, a.unclaim(server.Key))
		}
	}
	a.write(ctx, undo, report)
}

// advance notes that an operation succeeded.
func (a *Agent) advance(op kernel.Op) {
	a.have.Advance(op)
	switch o := op.Object.(type) {
	case kernel.Server:
		if op.Verb == kernel.Delete {
			delete(a.ours, o.Key)
		} else {
			a.ours[o.Key] = struct{}{}
		}
	case kernel.Set:
		// Which members a set with new parameters has kept is for the kernel to say.
		a.stale = a.stale || op.Verb == kernel.Update
	}
}

// noteLack notes that the kernel does not have a scheduler that is asked for: another one will be used.
func (a *Agent) noteLack(err error) {
	if lack := (kernel.NoSchedulerError{}); errors.As(err, &lack) {
		a.lacking[lack.Scheduler] = struct{}{}
	}
}
