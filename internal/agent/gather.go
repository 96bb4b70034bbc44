package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// maxTriggers bounds the triggers that are remembered while the kernel cannot be written.
const maxTriggers = 10_000

// gather reads what decides how Services compile, and lets the cluster learn it: the source's changes, the node's addresses and networks, the
// settings and the kernel's schedulers. On error the addresses and networks do not change.
func (s *syncRun) gather(ctx context.Context, changes model.Changes) error {
	facts := compile.Facts{Settings: s.takeSettings(), Nodes: changes.Nodes, Services: changes.Services, APIServer: changes.APIServer}
	err := s.readAddresses(ctx, &facts)
	s.cluster.Learn(facts)
	s.probeSchedulers(ctx, changes.Services)
	err = errors.Join(err, s.settle(ctx))
	s.report.Unreadable, s.held = changes.Problems, changes.Held
	triggers := append(s.pending.triggers, changes.Triggers...)
	s.pending.triggers = triggers[max(0, len(triggers)-maxTriggers):]
	return err
}

// readAddresses reads the node's addresses and networks if they may have changed, and on every full read.
func (s *syncRun) readAddresses(ctx context.Context, facts *compile.Facts) error {
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
	facts.Addresses = append([]netip.Addr{}, addrs...) // not nil
	network, err := s.kernel.Network(ctx)
	if err != nil {
		return fmt.Errorf("read this node's networks: %w; Services cannot claim the last known gateway and broadcast addresses", err)
	}
	if facts.Network = network; network == nil {
		facts.Network = kernel.Network{}
	}
	s.pending.addresses = false
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

// settle reads the facts that decide new claims to node addresses: the frontends that an earlier agent left in the kernel, before the first
// read, and the sockets on which the node's processes listen. Every full read rechecks the claims that wait for a process to end, and so does a
// change of their Service.
func (s *syncRun) settle(ctx context.Context) error {
	unsettled, atNode, waits := s.cluster.Unsettled(s.full())
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
	if s.listed = s.now; listeners == nil {
		listeners = kernel.Listeners{}
	}
	s.cluster.Learn(compile.Facts{Listeners: listeners})
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
	s.cluster.Learn(compile.Facts{Left: left})
	return nil
}

func (s *syncRun) takeSettings() *compile.Settings {
	settings := s.pending.settings
	if settings == nil {
		return nil
	}
	s.pending.settings, s.pending.reconfigured = nil, true
	s.cfg.Compile.Settings, s.cfg.DrainTimeout = settings.Compile, settings.DrainTimeout
	s.cfg.AuditInterval, s.cfg.CheckInterval, s.cfg.MinInterval = settings.AuditInterval, settings.CheckInterval, settings.MinInterval
	s.schedule.Intervals = s.cfg.intervals()
	return &settings.Compile
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
	s.cluster.Learn(compile.Facts{Schedulers: s.known.Schedulers.Take(answered)})
}
