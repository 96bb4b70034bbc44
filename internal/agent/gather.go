package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// maxTriggers bounds the triggers that are remembered while the kernel cannot be written.
const maxTriggers = 10_000

// gather collects all changes except those of the Services themselves: the node's addresses and networks, the settings, the kernel's
// schedulers, the Nodes and the API server's address. On error the addresses and networks do not change.
func (s *syncRun) gather(ctx context.Context, changes model.Changes) error {
	err := s.readAddresses(ctx)
	s.takeSettings()
	s.probeSchedulers(ctx, changes.Services)
	s.report.compiled(s.cluster.UpdateNodes(changes.Nodes, s.touched))
	if changes.APIServer != nil {
		s.report.compiled(s.cluster.SetAPIServer(changes.APIServer, s.touched))
	}
	err = errors.Join(err, s.settle(ctx, changes.Services))
	s.report.Unreadable, s.held = changes.Problems, changes.Held
	triggers := append(s.pending.triggers, changes.Triggers...)
	s.pending.triggers = triggers[max(0, len(triggers)-maxTriggers):]
	return err
}

// readAddresses reads the node's addresses and networks if they may have changed, and on every full read.
func (s *syncRun) readAddresses(ctx context.Context) error {
	if !s.pending.addresses && !s.full() {
		return nil
	}
	addrs, err := s.kernel.NodeAddresses(ctx)
	if err != nil {
		return fmt.Errorf("read this node's addresses: %w; node ports stay on the last known addresses", err)
	}
	if s.lost(addrs) {
		return fmt.Errorf("no interface of this node has an address; node ports stay on the last known addresses for %s", holdAddresses)
	}
	s.report.compiled(s.cluster.SetAddresses(addrs, s.touched))
	network, err := s.kernel.Network(ctx)
	if err != nil {
		return fmt.Errorf("read this node's networks: %w; Services cannot claim the last known gateway and broadcast addresses", err)
	}
	s.pending.addresses = false
	s.report.compiled(s.cluster.SetNetwork(network, s.touched))
	return nil
}

// holdAddresses is how long node ports stay although the node seems to have no address.
const holdAddresses = 10 * time.Second

// lost reports whether the node has just lost its last address. This happens for a moment while a network is reconfigured or a DHCP client
// renews a lost lease. No packet can arrive then, and the virtual servers keep the connections (I15).
func (s *syncRun) lost(addrs []netip.Addr) bool {
	if len(addrs) > 0 || len(s.cluster.Addresses()) == 0 {
		s.lostAddresses = time.Time{}
		return false
	}
	if s.lostAddresses.IsZero() {
		s.lostAddresses = s.now
	}
	return s.now.Before(s.lostAddresses.Add(holdAddresses))
}

// recheckSockets is the minimum time between two lists of the node's sockets, except for full reads. Until then, the last list decides.
const recheckSockets = time.Second

// settle collects the facts that decide new claims to node addresses: the frontends that an earlier agent left in the kernel, before the
// first read, and the sockets on which the node's processes listen. Every full read rechecks the claims that wait for a process to end, and so
// does a change of their Service.
func (s *syncRun) settle(ctx context.Context, changed map[model.ServiceID]*model.Service) error {
	claimants := maps.Values(changed)
	if s.full() {
		claimants = func(yield func(*model.Service) bool) {
			for svc := range maps.Values(changed) {
				if !yield(svc) {
					return
				}
			}
			s.cluster.Sources(yield)
		}
	}
	unsettled, atNode, waits := s.cluster.Unsettled(claimants)
	if len(unsettled) > 0 && s.known.State() == nil {
		if err := s.findLeft(ctx, unsettled); err != nil {
			return err
		}
	}
	if !atNode && !waits || !s.full() && s.now.Sub(s.listed) < recheckSockets {
		return nil
	}
	listeners, err := s.kernel.Listeners(ctx)
	if s.listenersErr = err; err != nil {
		s.cluster.ForgetListeners() // only these claims wait
		return nil
	}
	s.listed = s.now
	s.report.compiled(s.cluster.SetListeners(listeners, s.touched))
	return nil
}

// findLeft looks up frontends that an earlier agent left in the kernel.
func (s *syncRun) findLeft(ctx context.Context, unsettled []compile.FrontendKey) error {
	keys := make([]kernel.ServerKey, len(unsettled))
	for i, frontend := range unsettled {
		keys[i] = frontend.Key
	}
	found, err := s.kernel.Lookup(ctx, keys)
	if err != nil {
		return fmt.Errorf("look up virtual servers at node addresses: %w", err)
	}
	left := slices.DeleteFunc(unsettled, func(frontend compile.FrontendKey) bool {
		_, exists := found[frontend.Key]
		return !exists
	})
	s.report.compiled(s.cluster.SetLeft(slices.Values(left), s.touched))
	return nil
}

func (s *syncRun) takeSettings() {
	settings := s.pending.settings
	if settings == nil {
		return
	}
	s.pending.settings, s.pending.reconfigured = nil, true
	s.cfg.Compile.Settings, s.cfg.DrainTimeout = settings.Compile, settings.DrainTimeout
	s.cfg.AuditInterval, s.cfg.CheckInterval, s.cfg.MinInterval = settings.AuditInterval, settings.CheckInterval, settings.MinInterval
	s.schedule.Intervals = s.cfg.intervals()
	s.report.compiled(s.cluster.Reconfigure(settings.Compile, s.touched))
}

// nextProbe is when missing schedulers are probed again without a full read, which may be rare; zero if none is missing.
func (a *Agent) nextProbe() time.Time {
	if !a.cluster.LacksSchedulers() {
		return time.Time{}
	}
	return a.probed.Add(a.cfg.AuditInterval)
}

// probeSchedulers finds out which schedulers the kernel lacks. It probes those that a Service names for the first time and, on every full
// read and at least once in the time between audits, the node's default and the missing ones, because their modules may have been loaded
// since.
func (s *syncRun) probeSchedulers(ctx context.Context, changed map[model.ServiceID]*model.Service) {
	var others []string
	if at := s.nextProbe(); s.full() || !at.IsZero() && !s.now.Before(at) {
		others, s.probed = s.cluster.SchedulersToCheck(), s.now
	}
	var answered map[string]bool
	if names := s.known.Schedulers.ToProbe(changed, others); len(names) > 0 {
		answered = s.kernel.Schedulers(ctx, names)
	}
	s.report.compiled(s.cluster.SetSchedulers(s.known.Schedulers.Take(answered), s.touched))
}
