package agent

import (
	"context"
	"errors"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/agent/schedule"
	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// steps are the steps of a sync: read, decide and write.
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

// begin begins a sync.
func (t *steps) begin(now time.Time) *syncRun {
	touched := t.planner.left
	if t.planner.left = nil; touched == nil {
		touched = want.NewTouched()
	}
	return &syncRun{now: now, touched: touched, report: &Report{Started: now, Period: t.planner.cfg.period()}, reads: t.planner.known.State() == nil}
}

// once reads and decides once, and writes nothing.
func (t *steps) once(ctx context.Context, now time.Time, changes model.Changes) (*syncRun, diff.Plan, error) {
	s := t.begin(now)
	if failed := t.reader.gather(ctx, s, t.planner.cluster, t.planner.known, changes); failed.addresses != nil {
		return s, diff.Plan{}, failed.addresses
	}
	t.planner.compile(s)
	plan, err := t.planner.plan(ctx, t.reader.kernel, s)
	return s, plan, errors.Join(err, s.report.rulesErr.Err())
}
