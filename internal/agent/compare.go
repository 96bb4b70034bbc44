package agent

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// decide looks up the objects that the comparison needs, and then compares. If a virtual server that the agent wants
// to create already exists, it belongs to another program and must not get an owner record (I5).
func (p *planner) decide(
	ctx context.Context, k Kernel, s *syncRun, have *kernel.State, scope diff.Scope, opt diff.Options,
	learn func(keys []kernel.ServerKey, found map[kernel.ServerKey]kernel.ObservedServer),
) (diff.Decision, error) {
	looked := map[kernel.ServerKey]struct{}{}
	scope.Touched, scope.LookedUp = s.touched, func(key kernel.ServerKey) bool { _, known := looked[key]; return known }
	for {
		d := diff.Decide(p.target, have, scope, opt)
		if len(d.Unclear) == 0 {
			p.own(looked, have)
			return d, nil
		}
		found, err := k.Lookup(ctx, d.Unclear)
		if err != nil {
			return diff.Decision{}, fmt.Errorf("look up virtual servers: %w", err)
		}
		learn(d.Unclear, found)
		for _, key := range d.Unclear {
			looked[key] = struct{}{}
		}
	}
}

func (p *planner) own(looked map[kernel.ServerKey]struct{}, have *kernel.State) {
	for key := range looked {
		if _, exists := have.Servers[key]; exists && p.target.Server(key) != nil {
			p.known.Own(key)
		}
	}
}

// A difference is drift if all writes succeeded and nothing changed in the cluster. Changed Services, and writes that
// waited for rules, do not explain a difference in the rules.
func (p *planner) beginComparison(s *syncRun, fresh *kernel.State) {
	s.comparedAll = true
	p.known.ForgetContested(fresh, p.target.Base())
	s.rulesUnexplained = s.audit != nil && !p.schedule.Retrying() && !s.touched.Rules && !p.reconfigured
	s.unexplained = s.rulesUnexplained && len(s.report.Compiled) == 0 && !p.waiting
	s.rulesRead, s.sysctlsRead = maps.Clone(fresh.Rules), maps.Clone(fresh.Sysctls)
}

func (p *planner) takeDecision(s *syncRun, d diff.Decision) {
	s.unexplained = s.unexplained && !d.Moved
	s.report.Leftovers = d.Leftovers
	p.known.Refusals.Settle(d.Plan, p.target, nil)
	p.known.SetOurs(d.Ours)
	p.suspects = diff.NewSuspects(p.target, p.known.State(), d.Ours)
}

// If the rules of a family could not be read, rememberRules uses the rules from the last read. Without an earlier read,
// the agent writes the rules. In both cases, endpoint changes are applied (I16).
func (p *planner) rememberRules(s *syncRun, fresh *kernel.State) {
	rules := map[inet.Family]kernel.RulesView{}
	if known := p.known.State(); known != nil {
		for f := range fresh.RulesErr {
			rules[f] = known.Rules[f]
		}
	}
	maps.Copy(rules, fresh.Rules)
	s.report.rulesErr, s.report.rulesRead = fresh.RulesErr, true
	fresh.Rules = rules
}

func (p *planner) planTouched(ctx context.Context, k Kernel, s *syncRun) (diff.Plan, error) {
	s.report.Partial = p.known.Unverified().Concerns(s.touched)
	have := p.known.State()
	opt := p.options(s.now, have)
	if p.draining.Due(s.now) {
		counted, err := p.countDraining(ctx, k, s)
		if err != nil {
			return diff.Plan{}, err
		}
		opt.Fresh = counted
	}
	p.known.Refusals.TouchDue(s.now, p.target, s.touched)
	for _, key := range p.ramps.TakeDue(s.now) {
		if !p.known.Unverified().Has(key) {
			p.target.TouchWithNeeds(key, s.touched)
		}
	}
	d, err := p.decide(ctx, k, s, have, diff.Scope{Withhold: p.known.Unverified().Withhold}, opt, p.known.LookedUp)
	if err != nil {
		return diff.Plan{}, err
	}
	p.known.Refusals.Settle(d.Plan, p.target, s.touched)
	return d.Plan, nil
}

func (p *planner) countDraining(ctx context.Context, k Kernel, s *syncRun) (func(kernel.ServerKey) bool, error) {
	keys := p.draining.Turn()
	found, err := k.Lookup(ctx, keys)
	if err != nil {
		return nil, fmt.Errorf("count connections of draining destinations: %w", err)
	}
	p.known.LookedUp(keys, found)
	counted := map[kernel.ServerKey]bool{}
	for _, key := range keys {
		p.target.TouchWithNeeds(key, s.touched)
		counted[key] = true
	}
	return func(key kernel.ServerKey) bool { return counted[key] }, nil
}

func (p *planner) options(now time.Time, have *kernel.State) diff.Options {
	return diff.Options{
		Draining: p.draining.Draining,
		Expired: func(key kernel.ServerKey, d kernel.Destination) bool {
			return p.draining.Expired(now, p.cfg.DrainTimeout, key, d.Addr)
		},
		Room: p.draining.Room,
		Weight: func(server *want.Server, d kernel.Destination) uint32 {
			return p.ramps.Of(server.Key).Weight(now, server, d)
		},
		UpdateWeights: func(touched *want.Touched) { p.updateRamps(now, touched, have) },
		Unsettable:    p.known.Unsettable,
		Known:         p.known.Ours,
		Contested:     p.known.Contested,
	}
}

func (p *planner) updateRamps(now time.Time, touched *want.Touched, have *kernel.State) {
	if touched == nil {
		p.ramps.UpdateAll(now, p.target.Servers, have)
		return
	}
	for key := range touched.Servers {
		p.ramps.Update(now, key, p.target.Server(key), have)
	}
}
