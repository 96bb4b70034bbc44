package agent

import (
	"context"
	"fmt"

	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

func (p *planner) plan(ctx context.Context, k Kernel, s *syncRun) (diff.Plan, error) {
	if p.known.Unverified().Concerns(s.touched) {
		p.schedule.RetrySoon()
	}
	s.report.Full = s.full() && s.audit.failure() == nil
	switch {
	case s.audit != nil && s.audit.err == nil:
		return p.planAudit(ctx, k, s)
	case s.reads:
		p.schedule.Read(s.now)
		return p.planFull(ctx, k, s)
	}
	return p.planTouched(ctx, k, s)
}

func (p *planner) planFull(ctx context.Context, k Kernel, s *syncRun) (diff.Plan, error) {
	fresh, err := k.Read(ctx)
	if err != nil {
		return diff.Plan{}, fmt.Errorf("read the kernel's state: %w", err)
	}
	p.rememberRules(s, fresh)
	p.beginComparison(s, fresh)
	opt := p.options(s.now, fresh)
	opt.Fresh = func(kernel.ServerKey) bool { return true }
	d, err := p.decide(ctx, k, s, fresh, diff.Scope{All: true, Listed: true}, opt, fresh.LookedUp)
	if err != nil {
		return diff.Plan{}, err
	}
	p.known.Replace(fresh)
	p.takeDecision(s, d)
	return d.Plan, nil
}
