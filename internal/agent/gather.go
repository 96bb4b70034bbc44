package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/agent/known"
	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// reader reads the facts that decide how Services compile.
type reader struct {
	cfg    *Config
	source Source
	kernel Kernel
	// moved is true if the node's addresses and networks may have changed.
	moved bool
	// lostAddresses is when the node lost its last address; zero while it has one.
	lostAddresses time.Time
	// listed is when the node's sockets were last listed; probed is when missing schedulers were last probed.
	listed, probed time.Time
}

// gathered describes what could not be read.
type gathered struct {
	// addresses is why the node's last known addresses and networks are used. listeners is why the sockets of the node's processes are unknown.
	addresses, listeners error
}

func (g gathered) err() error { return errors.Join(g.addresses, g.listeners) }

// gather reads the facts and passes them to the cluster: the source's changes, the node's addresses and networks, the kernel's schedulers, and then whatever else the cluster
// needs.
func (r *reader) gather(ctx context.Context, s *syncRun, c *compile.Cluster, k *known.Kernel, changes model.Changes) (failed gathered) {
	facts := compile.Facts{Nodes: changes.Nodes, Services: changes.Services, APIServer: changes.APIServer}
	if r.moved || s.full() {
		failed.addresses = r.readAddresses(ctx, s.now, c, &facts)
	}
	c.Learn(facts)
	r.probeSchedulers(ctx, s, c, k, changes.Services)
	err := r.settle(ctx, s, c, k, &failed)
	failed.addresses = errors.Join(failed.addresses, err)
	return failed
}

// readAddresses reads the node's addresses and networks.
func (r *reader) readAddresses(ctx context.Context, now time.Time, c *compile.Cluster, facts *compile.Facts) error {
	addrs, err := r.kernel.NodeAddresses(ctx)
	if err != nil {
		return fmt.Errorf("read this node's addresses: %w; node ports stay on the last known addresses", err)
	}
	if r.lost(now, addrs, c) {
		return fmt.Errorf("no interface of this node has an address; node ports stay on the last known addresses for %s", holdAddresses)
	}
	facts.Addresses = append([]netip.Addr{}, addrs...) // not nil
	network, err := r.kernel.Network(ctx)
	if err != nil {
		return fmt.Errorf("read this node's networks: %w; Services cannot claim the last known gateway and broadcast addresses", err)
	}
	if facts.Network = network; network == nil {
		facts.Network = kernel.Network{}
	}
	r.moved = false
	return nil
}

// holdAddresses is how long node ports stay while the node seems to have no address.
const holdAddresses = 10 * time.Second

// lost reports whether the node has just lost its last address. This happens for a moment while a network is reconfigured or a DHCP client
// renews a lost lease. No packet can arrive then, and keeping the virtual servers keeps the connections (I15).
func (r *reader) lost(now time.Time, addrs []netip.Addr, c *compile.Cluster) bool {
	if len(addrs) > 0 || len(c.Addresses()) == 0 {
		r.lostAddresses = time.Time{}
		return false
	}
	if r.lostAddresses.IsZero() {
		r.lostAddresses = now
	}
	return now.Before(r.lostAddresses.Add(holdAddresses))
}

// recheckSockets is the minimum time between two lists of the node's sockets, except for full reads. Until then, the last list decides.
const recheckSockets = time.Second

// settle reads the facts that decide new claims to node addresses: the frontends that an earlier agent left in the kernel, before the first
// read, and the sockets on which the node's processes listen. Every full read and every change of the Service rechecks the claims that wait for a process to end.
func (r *reader) settle(ctx context.Context, s *syncRun, c *compile.Cluster, k *known.Kernel, failed *gathered) error {
	unsettled, atNode, waits := c.Unsettled(s.full())
	if len(unsettled) > 0 && k.State() == nil {
		left, err := r.findLeft(ctx, unsettled)
		if err != nil {
			return err
		}
		c.Learn(compile.Facts{Left: left})
	}
	if !atNode && !waits || !s.full() && s.now.Sub(r.listed) < recheckSockets {
		return nil
	}
	listeners, err := r.kernel.Listeners(ctx)
	if failed.listeners = err; err != nil {
		c.ForgetListeners() // so that only these claims wait
		return nil
	}
	if r.listed = s.now; listeners == nil {
		listeners = kernel.Listeners{}
	}
	c.Learn(compile.Facts{Listeners: listeners})
	return nil
}

// findLeft looks up frontends that an earlier agent left in the kernel.
func (r *reader) findLeft(ctx context.Context, unsettled []compile.FrontendKey) ([]compile.FrontendKey, error) {
	keys := make([]kernel.ServerKey, len(unsettled))
	for i, frontend := range unsettled {
		keys[i] = frontend.Key
	}
	found, err := r.kernel.Lookup(ctx, keys)
	if err != nil {
		return nil, fmt.Errorf("look up virtual servers at node addresses: %w", err)
	}
	return slices.DeleteFunc(unsettled, func(frontend compile.FrontendKey) bool {
		_, exists := found[frontend.Key]
		return !exists
	}), nil
}

// nextProbe is when missing schedulers are probed again without a full read, which may be rare; zero if none is missing.
func (r *reader) nextProbe(c *compile.Cluster) time.Time {
	if !c.LacksSchedulers() {
		return time.Time{}
	}
	return r.probed.Add(r.cfg.AuditInterval)
}

// probeSchedulers finds out which schedulers the kernel lacks. It probes those that a Service names for the first time and, on every full
// read and at least once in the time between audits, the node's default and the missing ones, because their modules may have been loaded
// since.
func (r *reader) probeSchedulers(
	ctx context.Context, s *syncRun, c *compile.Cluster, k *known.Kernel, changed map[model.ServiceID]*model.Service,
) {
	var others []string
	if at := r.nextProbe(c); s.full() || !at.IsZero() && !s.now.Before(at) {
		others, r.probed = c.SchedulersToCheck(), s.now
	}
	var answered map[string]bool
	if names := k.Schedulers.ToProbe(changed, others); len(names) > 0 {
		answered = r.kernel.Schedulers(ctx, names)
	}
	c.Learn(compile.Facts{Schedulers: k.Schedulers.Take(answered)})
}
