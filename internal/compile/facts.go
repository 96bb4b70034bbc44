package compile

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Facts are what may have changed. A nil field has not.
type Facts struct {
	Settings *Settings
	// Addresses are those of the node's interfaces, except for kube-ipvs0. Network has the addresses that the node's networks use themselves.
	Addresses []netip.Addr
	Network   kernel.Network
	// Schedulers reports for some schedulers whether the kernel has them.
	Schedulers map[string]bool
	// Nodes and Services that changed; nil for a deleted one.
	Nodes    map[string]*model.Node
	Services map[model.ServiceID]*model.Service
	// APIServer has the addresses at which the agent reaches the API server.
	APIServer []netip.AddrPort
	// Left are frontends that an earlier agent left in the kernel.
	Left []FrontendKey
	// Listeners are the sockets on which the node's processes listen.
	Listeners kernel.Listeners
}

// changes are what Learn has learned since the last Compile.
type changes struct {
	services map[model.ServiceID]*model.Service
	// affected are the Services to compile for another reason; late are those that can wait.
	affected, late []func(*model.Service) bool
	// base is true if the part that does not depend on Services has changed.
	base bool
}

// Apply learns facts and compiles what they affect.
func (c *Cluster) Apply(f Facts, touched *want.Touched) []model.ServiceID {
	c.Learn(f)
	return c.Compile(touched)
}

// Learn takes over facts. Unsettled then says which other facts decide, and Compile compiles what has changed.
func (c *Cluster) Learn(f Facts) {
	if f.Settings != nil {
		c.node.Settings = *f.Settings
		c.baseChanges()
		c.affects(every)
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
	c.learnLeft(f.Left)
	if f.Listeners != nil {
		c.learnListeners(f.Listeners)
	}
	if c.changes.services == nil {
		c.changes.services = map[model.ServiceID]*model.Service{}
	}
	maps.Copy(c.changes.services, f.Services)
}

// Compile compiles the Services that have changed, and those that anything else learned affects, and returns them. It adds the affected kernel
// objects to touched.
func (c *Cluster) Compile(touched *want.Touched) []model.ServiceID {
	learned := c.changes
	c.changes = changes{}
	touched.Rules = touched.Rules || learned.base
	c.backlog = c.backlog.with(keySet(c.servicesThat(learned.late)))
	changed := c.servicesThat(learned.affected)
	maps.Copy(changed, learned.services)
	return c.Update(changed, touched)
}

// Waiting are the changed Services that Compile will compile.
func (c *Cluster) Waiting() map[model.ServiceID]*model.Service { return c.changes.services }

func (c *Cluster) baseChanges() { c.state.Base, c.changes.base = c.node.base(), true }

// affects requests that these Services be compiled again.
func (c *Cluster) affects(which func(*model.Service) bool) {
	c.changes.affected = append(c.changes.affected, which)
}

func every(*model.Service) bool { return true }

// servicesThat returns the input of the Services that any of the conditions selects.
func (c *Cluster) servicesThat(conditions []func(*model.Service) bool) map[model.ServiceID]*model.Service {
	chosen := map[model.ServiceID]*model.Service{}
	if len(conditions) == 0 {
		return chosen
	}
	for id, s := range c.services {
		if slices.ContainsFunc(conditions, func(selects func(*model.Service) bool) bool { return selects(s.service) }) {
			chosen[id] = s.service
		}
	}
	return chosen
}

func keySet(services map[model.ServiceID]*model.Service) map[model.ServiceID]struct{} {
	ids := make(map[model.ServiceID]struct{}, len(services))
	for id := range services {
		ids[id] = struct{}{}
	}
	return ids
}
