package agent

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

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
	opt := s.options()
	opt.Fresh = func(kernel.ServerKey) bool { return true }
	fresh, err := s.read(ctx, opt)
	if err != nil {
		return diff.Plan{}, err
	}
	s.known.Replace(fresh, s.cluster.Want().Base)
	return s.compareAll(opt), nil
}

// compareAll compares everything with the known state, which a read or an audit has just verified.
func (s *syncRun) compareAll(opt diff.Options) diff.Plan {
	s.comparedAll = true
	w, fresh := s.cluster.Want(), s.known.State()
	// A difference is drift if all writes had succeeded and nothing changed in the cluster. Changed Services explain no difference in the
	// rules.
	s.rulesUnexplained = s.audit != nil && !s.schedule.Retrying() && !s.touched.Rules && !s.pending.reconfigured
	s.unexplained = s.rulesUnexplained && len(s.report.Compiled) == 0
	s.rulesRead, s.sysctlsRead = maps.Clone(fresh.Rules), maps.Clone(fresh.Sysctls)

	freed := diff.Freed(w, fresh)
	for _, key := range freed {
		w.SetForeign(key, false, s.touched)
	}
	lingered := slices.Collect(w.Lingering)
	w.SetLingering(slices.Values(lingered), diff.Lingering(w, fresh, maps.Keys(fresh.Servers), opt), s.touched)
	s.unexplained = s.unexplained && len(freed) == 0 && !slices.ContainsFunc(lingered, func(key kernel.ServerKey) bool { return !w.Lingers(key) })
	for _, key := range diff.Foreign(w, fresh, diff.AllKeys(w), opt) {
		w.SetForeign(key, true, s.touched)
	}
	s.report.Leftovers = diff.FindLeftovers(w, fresh, opt)
	s.report.IPv6Off = diff.IPv6Missing(w, fresh)
	s.ramps.UpdateAll(s.now, w, fresh)
	plan := diff.Full(w, fresh, opt)
	s.known.Refusals.Settle(plan, nil)
	s.known.SetOurs(diff.Ours(w, fresh, opt))
	return plan
}

// read reads the whole kernel. It looks up again the virtual servers that should exist and that the read lacks in part or in full.
func (s *syncRun) read(ctx context.Context, opt diff.Options) (*kernel.State, error) {
	fresh, err := s.kernel.Read(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the kernel's state: %w", err)
	}
	s.rememberRules(fresh)
	w := s.cluster.Want()
	unclear := append(diff.Missing(w, fresh, opt), diff.Limited(w, fresh)...)
	if len(unclear) == 0 {
		return fresh, nil
	}
	found, err := s.kernel.Lookup(ctx, unclear)
	if err != nil {
		return nil, fmt.Errorf("look up virtual servers that the read did not see in full: %w", err)
	}
	maps.Copy(fresh.Servers, found)
	return fresh, nil
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
	opt := s.options()
	if s.draining.Due(s.now) {
		counted, err := s.countDraining(ctx)
		if err != nil {
			return diff.Plan{}, err
		}
		opt.Fresh = counted
	}
	s.known.Refusals.TouchDue(s.now, s.touched)
	s.updateLingering(opt)
	s.known.Unverified().Withhold(s.touched)
	if err := s.detectForeign(ctx, opt); err != nil {
		return diff.Plan{}, err
	}
	s.updateRamps()
	plan := diff.Touched(s.cluster.Want(), s.known.State(), s.touched, opt)
	s.known.Refusals.Settle(plan, s.touched)
	return plan, nil
}

// updateLingering decides again which virtual servers linger, among those that may just have been replaced and those that did at their
// addresses. A Service may have thousands, so all others stay untouched.
func (s *syncRun) updateLingering(opt diff.Options) {
	w, at := s.cluster.Want(), map[netip.Addr]struct{}{}
	keys := slices.Collect(maps.Keys(s.touched.Servers))
	for _, key := range keys {
		at[key.Addr.Addr()] = struct{}{}
	}
	for key := range w.Lingering {
		if _, concerned := at[key.Addr.Addr()]; concerned {
			keys = append(keys, key)
		}
	}
	w.SetLingering(slices.Values(keys), diff.Lingering(w, s.known.State(), slices.Values(keys), opt), s.touched)
}

// updateRamps touches the virtual servers of which a weight is due to rise.
func (s *syncRun) updateRamps() {
	for _, key := range s.ramps.TakeDue(s.now) {
		if !s.known.Unverified().Has(key) {
			s.touched.Servers[key] = struct{}{}
		}
	}
	s.ramps.Update(s.now, maps.Keys(s.touched.Servers), s.cluster.Want(), s.known.State())
}

// countDraining reads the connection counts of the virtual servers whose turn it is. The result reports whether it read a virtual server.
func (s *syncRun) countDraining(ctx context.Context) (func(kernel.ServerKey) bool, error) {
	keys := s.draining.Turn()
	if _, err := s.lookup(ctx, keys); err != nil {
		return nil, fmt.Errorf("count connections of draining destinations: %w", err)
	}
	counted := map[kernel.ServerKey]bool{}
	for _, key := range keys {
		s.touched.Servers[key] = struct{}{}
		counted[key] = true
	}
	return func(key kernel.ServerKey) bool { return counted[key] }, nil
}

// lookup reads virtual servers again.
func (s *syncRun) lookup(ctx context.Context, keys []kernel.ServerKey) (map[kernel.ServerKey]kernel.ObservedServer, error) {
	found, err := s.kernel.Lookup(ctx, keys)
	if err != nil {
		return nil, err
	}
	s.known.LookedUp(keys, found)
	return found, nil
}

// detectForeign looks up the virtual servers that are about to be created. One that already exists belongs to another program and must not
// get an owner record (I5).
func (s *syncRun) detectForeign(ctx context.Context, opt diff.Options) error {
	w := s.cluster.Want()
	claims := diff.Claims(w, s.known.State(), maps.Keys(s.touched.Servers), opt)
	if len(claims) == 0 {
		return nil
	}
	found, err := s.lookup(ctx, claims)
	if err != nil {
		return fmt.Errorf("look for foreign virtual servers: %w", err)
	}
	for _, key := range diff.Foreign(w, s.known.State(), claims, opt) {
		w.SetForeign(key, true, s.touched)
	}
	for key := range found {
		if w.Servers[key] != nil {
			s.known.Own(key)
		}
	}
	return nil
}

func (s *syncRun) options() diff.Options {
	return diff.Options{
		Expired: func(key kernel.ServerKey, d kernel.Destination) bool {
			return s.draining.Expired(s.now, s.cfg.DrainTimeout, key, d.Addr)
		},
		Room: s.draining.Room(s.cluster.Want()),
		Weight: func(server *want.Server, d kernel.Destination) uint32 {
			return s.ramps.Of(server.Key).Weight(s.now, server, d)
		},
		Unsettable: s.known.Unsettable,
		Known:      s.known.Ours,
		Contested:  s.known.Contested,
	}
}
