package agent

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/agent/schedule"
	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

type steps struct {
	reader  *reader
	planner *planner
	writer  *writer
}

func newSteps(cfg *Config, source Source, k Kernel, s *schedule.Schedule, b *background) *steps {
	return &steps{
		&reader{cfg: cfg, source: source, kernel: k, moved: true}, newPlanner(cfg, s), newWriter(cfg, source, k, s, b),
	}
}

func (t *steps) begin(now time.Time) *syncRun {
	touched := t.planner.left
	if t.planner.left = nil; touched == nil {
		touched = want.NewTouched()
	}
	return &syncRun{now: now, touched: touched, report: &Report{Started: now, Period: t.planner.cfg.period()}, reads: t.planner.known.State() == nil}
}

func (t *steps) once(ctx context.Context, now time.Time, changes model.Changes) (*syncRun, diff.Plan, error) {
	s := t.begin(now)
	if failed := t.reader.gather(ctx, s, t.planner.cluster, t.planner.known, changes); failed.addresses != nil {
		return s, diff.Plan{}, failed.addresses
	}
	t.planner.compile(s)
	plan, err := t.planner.plan(ctx, t.reader.kernel, s)
	return s, plan, errors.Join(err, s.report.rulesErr.Err())
}

func aloneSteps(cfg compile.Config, k Kernel, have *kernel.State) *steps {
	t := newSteps(&Config{Compile: cfg}, nil, k, &schedule.Schedule{}, newBackground())
	t.writer.alone = true
	t.planner.known.Replace(have)
	return t
}

func (t *steps) apply(ctx context.Context, plan diff.Plan, report func(kernel.Op, error)) error {
	s := t.begin(time.Now())
	t.planner.known.BeginPlan(t.planner.target)
	t.writer.applyPart(ctx, s, t.planner, plan)
	for _, r := range s.report.Results {
		report(r.Op, r.Err)
	}
	return s.report.errorOf(Result.failed)
}

// SetSysctls sets the sysctls, which the agent cannot do with CAP_NET_ADMIN and CAP_NET_RAW alone.
func SetSysctls(ctx context.Context, cfg compile.Config, k Kernel, log *zap.Logger) error {
	have, err := k.Read(ctx)
	if err != nil {
		return err
	}
	steps := aloneSteps(cfg, k, have)
	plan := diff.Decide(steps.planner.target, have, diff.Scope{All: true, Touched: want.NewTouched()}, diff.Options{}).Plan
	plan = plan.Without(func(op kernel.Op) bool { return op.KindOf() != kernel.KindSysctl })
	err = steps.apply(ctx, plan, func(op kernel.Op, err error) {
		if err != nil {
			log.Warn("failed", zap.Stringer("op", op), zap.Error(err))
		} else {
			log.Info(op.String())
		}
	})
	if err == nil {
		log.Info("sysctls set", zap.Int("changes", plan.Len()))
	}
	return err
}
