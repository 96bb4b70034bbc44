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

type reader struct {
	cfg    *Config
	source Source
	kernel Kernel
	// moved is true if the node's addresses or networks may differ from node, which is nil before the first read.
	moved bool
	node  *kernel.Node
	// lostAddresses is the time at which the node lost its last address, or zero while it has any.
	lostAddresses  time.Time
	listed, probed time.Time
}

// gathered contains the errors of failed reads.
type gathered struct {
	// If addresses is not nil, the agent uses the last known addresses and networks of the node.
	addresses, listeners error
}

func (g gathered) err() error { return errors.Join(g.addresses, g.listeners) }

func (r *reader) gather(ctx context.Context, s *syncRun, c *compile.Cluster, k *known.Kernel, changes model.Changes) (failed gathered) {
	facts := compile.Facts{Nodes: changes.Nodes, Services: changes.Services, APIServer: changes.APIServer, Version: changes.Version}
	if s.reads || r.moved || s.audit != nil && !s.audit.confirms(r.node) {
		failed.addresses = r.readAddresses(ctx, s.now, c, &facts)
	}
	c.Learn(facts)
	r.probeSchedulers(ctx, s, c, k, changes.Services)
	err := r.settle(ctx, s, c, k, &failed)
	failed.addresses = errors.Join(failed.addresses, err)
	return failed
}

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
	r.moved, r.node = false, &kernel.Node{Addresses: addrs, Network: network}
	return nil
}

// holdAddresses is how long node ports stay after the node has lost its last address.
const holdAddresses = 10 * time.Second

// lost reports whether the node has just lost its last address. A node may have no address for a moment, while a
// network is reconfigured or a DHCP client renews a lost lease. If the virtual servers stay, connections survive this
// (I15).
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

const recheckSockets = time.Second

// settle reads the facts that new claims to node addresses depend on. These are the sockets on which the node's
// processes listen and, before the first read, the frontends that an earlier agent left in the kernel. Claims that
// wait for a process to end are rechecked on every full read and on every change to their Service.
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
		c.ForgetListeners()
		return nil
	}
	if r.listed = s.now; listeners == nil {
		listeners = kernel.Listeners{}
	}
	c.Learn(compile.Facts{Listeners: listeners})
	return nil
}

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

// nextProbe returns the time of the next probe for missing schedulers. Full reads also probe, but may be rare.
func (r *reader) nextProbe(c *compile.Cluster) time.Time {
	if !c.LacksSchedulers() {
		return time.Time{}
	}
	return r.probed.Add(r.cfg.AuditInterval)
}

// probeSchedulers determines which schedulers the kernel lacks. It probes new names immediately. It probes the default
// scheduler and the missing ones on every full read, and at least once per audit interval, because their modules may
// have been loaded in the meantime.
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
