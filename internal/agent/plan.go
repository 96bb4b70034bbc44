package agent

import (
	"context"
	"fmt"
	"maps"

	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// plan compares the wanted state with the kernel: with a full read if one is due, otherwise with the known state.
func (s *syncRun) plan(ctx context.Context) (diff.Plan, error) {
	if s.known.Unverified().Concerns(s.touched) {
		s.schedule.RetrySoon()
	}
	s.report.Full = s.full() && s.auditErr() == nil
	switch {
	case s.audit != nil && s.audit.err == nil:
		return s.planAudit(ctx)
	case s.reads:
		s.schedule.Read(s.now)
		return s.planFull(ctx)
	}
	return s.planTouched(ctx)
}

// planFull reads the whole kernel and compares everything.
func (s *syncRun) planFull(ctx context.Context) (diff.Plan, error) {
	fresh, err := s.kernel.Read(ctx)
	if err != nil {
		return diff.Plan{}, fmt.Errorf("read the kernel's state: %w", err)
	}
	s.rememberRules(fresh)
	s.beginComparison(fresh)
	opt := s.options(fresh)
	opt.Fresh = func(kernel.ServerKey) bool { return true }
	d, err := s.decide(ctx, fresh, diff.Scope{All: true, Listed: true}, opt, fresh.LookedUp)
	if err != nil {
		return diff.Plan{}, err
	}
	s.known.Replace(fresh)
	s.takeDecision(d)
	return d.Plan, nil
}

// decide compares, and looks up what that needs to know first. A virtual server that is about to be created and already exists belongs to another
// program, and must not get an owner record (I5).
func (s *syncRun) decide(
	ctx context.Context, have *kernel.State, scope diff.Scope, opt diff.Options,
	learn func(keys []kernel.ServerKey, found map[kernel.ServerKey]kernel.ObservedServer),
) (diff.Decision, error) {
	looked := map[kernel.ServerKey]struct{}{}
	scope.Touched, scope.LookedUp = s.touched, func(key kernel.ServerKey) bool { _, known := looked[key]; return known }
	for {
		d := diff.Decide(s.target, have, scope, opt)
		if len(d.Unclear) == 0 {
			s.own(looked, have)
			return d, nil
		}
		found, err := s.kernel.Lookup(ctx, d.Unclear)
		if err != nil {
			return diff.Decision{}, fmt.Errorf("look up virtual servers: %w", err)
		}
		learn(d.Unclear, found)
		for _, key := range d.Unclear {
			looked[key] = struct{}{}
		}
	}
}

// own records that those of the looked up virtual servers are ours that exist and should.
func (s *syncRun) own(looked map[kernel.ServerKey]struct{}, have *kernel.State) {
	for key := range looked {
		if _, exists := have.Servers[key]; exists && s.target.Server(key) != nil {
			s.known.Own(key)
		}
	}
}

// beginComparison begins to compare everything. A difference is drift if all writes had succeeded and nothing changed in the cluster. Changed
// Services explain no difference in the rules.
func (s *syncRun) beginComparison(fresh *kernel.State) {
	s.comparedAll = true
	s.known.ForgetContested(fresh, s.target.Base())
	s.rulesUnexplained = s.audit != nil && !s.schedule.Retrying() && !s.touched.Rules && !s.pending.reconfigured
	s.unexplained = s.rulesUnexplained && len(s.report.Compiled) == 0
	s.rulesRead, s.sysctlsRead = maps.Clone(fresh.Rules), maps.Clone(fresh.Sysctls)
}

// takeDecision takes over a comparison of everything.
func (s *syncRun) takeDecision(d diff.Decision) {
	s.unexplained = s.unexplained && !d.Moved
	s.report.Found = d.Found
	s.known.Refusals.Settle(d.Plan, nil)
	s.known.SetOurs(d.Ours)
}

// rememberRules completes a state in which a family's rules could not be read. It uses the rules of the last read, or none, which makes the
// agent write them. Either way, endpoint changes are applied (I16).
func (s *syncRun) rememberRules(fresh *kernel.State) {
	rules := map[inet.Family]kernel.RulesView{}
	if known := s.known.State(); known != nil {
		for f := range fresh.RulesErr {
			rules[f] = known.Rules[f]
		}
	}
	maps.Copy(rules, fresh.Rules)
	s.report.rulesErr, s.report.rulesRead = fresh.RulesErr, true
	fresh.Rules = rules
}

// planTouched compares the touched objects with the remembered state.
func (s *syncRun) planTouched(ctx context.Context) (diff.Plan, error) {
	have := s.known.State()
	opt := s.options(have)
	if s.draining.Due(s.now) {
		counted, err := s.countDraining(ctx)
		if err != nil {
			return diff.Plan{}, err
		}
		opt.Fresh = counted
	}
	s.known.Refusals.TouchDue(s.now, s.touched)
	for _, key := range s.ramps.TakeDue(s.now) {
		if !s.known.Unverified().Has(key) {
			s.touched.Servers[key] = struct{}{}
		}
	}
	d, err := s.decide(ctx, have, diff.Scope{Withhold: s.known.Unverified().Withhold}, opt, s.known.LookedUp)
	if err != nil {
		return diff.Plan{}, err
	}
	s.known.Refusals.Settle(d.Plan, s.touched)
	return d.Plan, nil
}

// countDraining reads the connection counts of the virtual servers whose turn it is. The result reports whether it read a virtual server.
func (s *syncRun) countDraining(ctx context.Context) (func(kernel.ServerKey) bool, error) {
	keys := s.draining.Turn()
	found, err := s.kernel.Lookup(ctx, keys)
	if err != nil {
		return nil, fmt.Errorf("count connections of draining destinations: %w", err)
	}
	s.known.LookedUp(keys, found)
	counted := map[kernel.ServerKey]bool{}
	for _, key := range keys {
		s.touched.Servers[key] = struct{}{}
		counted[key] = true
	}
	return func(key kernel.ServerKey) bool { return counted[key] }, nil
}

func (s *syncRun) options(have *kernel.State) diff.Options {
	return diff.Options{
		Expired: func(key kernel.ServerKey, d kernel.Destination) bool {
			return s.draining.Expired(s.now, s.cfg.DrainTimeout, key, d.Addr)
		},
		Room: s.draining.Room(s.target),
		Weight: func(server *want.Server, d kernel.Destination) uint32 {
			return s.ramps.Of(server.Key).Weight(s.now, server, d)
		},
		UpdateWeights: func(touched *want.Touched) { s.updateRamps(touched, have) },
		Unsettable:    s.known.Unsettable,
		Known:         s.known.Ours,
		Contested:     s.known.Contested,
	}
}

// updateRamps updates the weights in slow start of touched virtual servers, or of all.
func (s *syncRun) updateRamps(touched *want.Touched, have *kernel.State) {
	if touched == nil {
		s.ramps.UpdateAll(s.now, s.target.Servers, have)
		return
	}
	for key := range touched.Servers {
		s.ramps.Update(s.now, key, s.target.Server(key), have)
	}
}
