package compile

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Facts are the inputs that may have changed. A nil field means no change.
type Facts struct {
	Settings *Settings
	// Mode is the new mode, if the node moves to another one while the agent runs.
	Mode *kernel.Mode
	// Addresses are the addresses of the node's interfaces, except for kube-ipvs0. Network contains the addresses that the node's networks
	// need, such as gateways and broadcast addresses.
	Addresses []netip.Addr
	Network   kernel.Network
	// Schedulers maps schedulers to whether the kernel has them. Some may be missing.
	Schedulers map[string]bool
	// Nodes and Services contain the changed objects. Deleted objects are nil.
	Nodes    map[string]*model.Node
	Services map[model.ServiceID]*model.Service
	// APIServer contains the addresses at which the agent reaches the API server.
	APIServer []netip.AddrPort
	// Version is the API server's version; zero means no change.
	Version model.Version
	// Left contains the frontends that an earlier agent left in the kernel.
	Left      []FrontendKey
	Listeners kernel.Listeners
}

// Apply records facts and compiles the Services that they affect.
func (c *Cluster) Apply(f Facts, touched *want.Touched) []model.ServiceID {
	c.Learn(f)
	return c.Compile(touched)
}

// Learn records facts. Afterwards, call Unsettled for the frontends that need more facts, and then Compile to apply
// the changes.
func (c *Cluster) Learn(f Facts) {
	if f.Settings != nil {
		c.node.Settings = *f.Settings
	}
	if f.Mode != nil {
		c.node.Mode = *f.Mode
	}
	if f.Settings != nil || f.Mode != nil {
		c.baseChanges()
		c.affects(everyService)
	}
	if f.Addresses != nil {
		c.learnAddresses(f.Addresses)
	}
	if f.Network != nil {
		c.learnNetwork(f.Network)
	}
	c.learnSchedulers(f.Schedulers)
	c.learnNodes(f.Nodes)
	if f.APIServer != nil {
		c.learnAPIServer(f.APIServer)
	}
	if f.Version != (model.Version{}) {
		c.learnVersion(f.Version)
	}
	c.learnLeft(f.Left)
	if f.Listeners != nil {
		c.learnListeners(f.Listeners)
	}
	if c.changes.services == nil {
		c.changes.services = make(map[model.ServiceID]*model.Service, len(f.Services))
	}
	maps.Copy(c.changes.services, f.Services)
}

// Compile compiles the changed Services and the Services affected by other new facts, and returns them. It adds the affected kernel
// objects to touched.
func (c *Cluster) Compile(touched *want.Touched) []model.ServiceID {
	learned := c.changes
	c.changes = changes{}
	touched.Rules = touched.Rules || learned.base
	c.backlog = c.backlog.with(keySet(c.servicesThat(learned.late)))
	changed := learned.services
	if affected := c.servicesThat(learned.affected); len(affected) > 0 {
		maps.Copy(affected, changed)
		changed = affected
	}
	return c.Update(changed, touched)
}

// Waiting returns the changed Services that Compile will compile.
func (c *Cluster) Waiting() map[model.ServiceID]*model.Service { return c.changes.services }

// Unsettled lists the frontends at node and pod addresses and in the node's networks that are not served yet, except node ports. Whether they will be
// served depends on the frontends that an earlier agent left in the kernel (Facts.Left). It covers all Services, or only the Services that Compile
// will compile. atNode is true if any of these frontends also depends on the sockets of the node's processes (Facts.Listeners). waits is true if a
// process was listening on the port of any of them when the sockets were last read.
func (c *Cluster) Unsettled(all bool) (unsettled []FrontendKey, atNode, waits bool) {
	claimants := c.servicesThat(c.changes.affected)
	if all {
		for id := range c.asking {
			claimants[id] = c.services[id].service
		}
	}
	maps.Copy(claimants, c.changes.services)
	for _, svc := range claimants {
		if svc != nil {
			some, needed, occupied := c.node.unsettled(svc)
			unsettled, atNode, waits = append(unsettled, some...), atNode || needed, waits || occupied
		}
	}
	return unsettled, atNode, waits
}

// ForgetListeners makes new claims to ports at the node's own addresses wait until the sockets are known again.
func (c *Cluster) ForgetListeners() { c.node.listeners = nil }

// SchedulersToCheck lists the node's default scheduler and all missing schedulers, whose modules may have been installed in the meantime.
func (c *Cluster) SchedulersToCheck() []string {
	check := maps.Clone(c.node.missing)
	check[c.node.Scheduler] = struct{}{}
	return slices.Sorted(maps.Keys(check))
}

// LacksSchedulers reports whether a scheduler is missing.
func (c *Cluster) LacksSchedulers() bool { return len(c.node.missing) > 0 }
