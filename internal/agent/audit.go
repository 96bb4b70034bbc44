package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// audits read the kernel outside the loop, because a read takes a long time with many Services.
type audits struct {
	job[*kernel.Differences]
	ended *audit
}

func (a *audits) start(ctx context.Context, b *background, k Kernel, p *planner) {
	limited, found := diff.MayHaveLimits(p.target, p.known.State()), &audit{}
	asked := p.known.BeginAudit(limited)
	found.limited = setOf(limited)
	read := func() (*kernel.Differences, error) {
		began := time.Now()
		defer func() { found.took = time.Since(began) }()
		return k.Audit(ctx, asked)
	}
	a.job.start(b, read, func(d *kernel.Differences, err error) {
		found.differences, found.err = d, err
		a.ended = found
		p.schedule.Request()
	})
}

func setOf(keys []kernel.ServerKey) map[kernel.ServerKey]struct{} {
	set := make(map[kernel.ServerKey]struct{}, len(keys))
	for _, key := range keys {
		set[key] = struct{}{}
	}
	return set
}

// takeAudit merges an audit's findings into the known state. It reports whether a full comparison is necessary.
func (p *planner) takeAudit(ctx context.Context, k Kernel, s *syncRun) (bool, error) {
	d := s.audit.differences
	unclear := p.known.Unseen(d)
	for _, key := range diff.MayHaveLimits(p.target, p.known.State()) {
		_, reported := d.Servers[key]
		if _, limited := s.audit.limited[key]; reported && !limited && !p.known.Written(key) {
			unclear = append(unclear, key)
		}
	}
	var found map[kernel.ServerKey]kernel.ObservedServer
	if len(unclear) > 0 {
		var err error
		if found, err = k.Lookup(ctx, unclear); err != nil {
			return false, fmt.Errorf("look up virtual servers that the audit may have missed: %w", err)
		}
	}
	for _, key := range unclear {
		d.Servers[key] = nil
		if server, exists := found[key]; exists {
			d.Servers[key] = &server
		}
	}
	if unseen := p.known.UnseenMembers(d); len(unseen) > 0 {
		found, err := k.LookupMembers(ctx, unseen)
		if err != nil {
			return false, fmt.Errorf("look up set members that the audit missed: %w", err)
		}
		p.known.Exist(found)
	}
	p.rememberRules(s, &d.Base)
	differs := p.known.Merge(d)
	p.known.AskAgain(unclear)
	return differs, nil
}

// planAudit compares the wanted state with an audit's findings. It ignores the audit's connection counts, because
// connections may have begun since the read.
func (p *planner) planAudit(ctx context.Context, k Kernel, s *syncRun) (diff.Plan, error) {
	differs, err := p.takeAudit(ctx, k, s)
	if err != nil {
		return diff.Plan{}, err
	}
	have := p.known.State()
	opt := p.options(s.now, have)
	if !differs && !diff.BaseDiffers(p.target, have, opt) {
		p.known.TouchSkipped(p.target, s.touched)
		p.suspects.Add(s.touched)
		s.report.Leftovers = p.suspects.Leftovers(p.target, have, opt)
		return p.planTouched(ctx, k, s)
	}
	p.beginComparison(s, have)
	d, err := p.decide(ctx, k, s, have, diff.Scope{All: true}, opt, p.known.LookedUp)
	if err != nil {
		return diff.Plan{}, err
	}
	p.known.Compared()
	p.takeDecision(s, d)
	s.report.Partial = len(p.known.Unverified()) > 0
	return p.known.Unverified().Without(d.Plan), nil
}
