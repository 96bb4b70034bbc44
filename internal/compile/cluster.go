package compile

import (
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Cluster compiles a changing cluster. It keeps each Service's fragment and the claims to each frontend, so that a change recompiles only the
// affected Services.
type Cluster struct {
	node     nodeContext
	services map[model.ServiceID]*Compiled
	// asking contains the Services for which nodeContext.asksForNodes is true.
	asking  map[model.ServiceID]struct{}
	state   *want.State
	backlog backlog
	changes changes
}

// NewCluster returns a cluster without Services.
func NewCluster(cfg Config) *Cluster {
	return &Cluster{
		node:     newNodeContext(cfg),
		services: map[model.ServiceID]*Compiled{},
		asking:   map[model.ServiceID]struct{}{},
		state:    want.New(Base(cfg)),
	}
}

// Want returns the wanted state, which Update changes.
func (c *Cluster) Want() *want.State { return c.state }

// Services counts the served Services.
func (c *Cluster) Services() int { return len(c.services) }

// Namespaces counts the namespaces of the served Services.
func (c *Cluster) Namespaces() int {
	names := map[string]struct{}{}
	for id := range c.services {
		names[id.Namespace] = struct{}{}
	}
	return len(names)
}

// Node returns this node's object, or nil while it is unknown.
func (c *Cluster) Node() *model.Node { return c.node.object }

// Problems returns the problems of a Service.
func (c *Cluster) Problems(id model.ServiceID) []model.Problem {
	if s := c.services[id]; s != nil {
		return s.problems
	}
	return nil
}

// NodePortAddresses returns the addresses at which node ports are served. Nil means every address of the node.
func (c *Cluster) NodePortAddresses() []netip.Addr {
	if n := c.node.NodePorts; n.All || !n.Primary && !n.Localhost && len(n.CIDRs) == 0 {
		return nil
	}
	addrs := []netip.Addr{}
	for _, f := range c.node.Families {
		addrs = append(addrs, c.node.nodePortAddresses(f)...)
	}
	return addrs
}

// LoopbackAddresses returns the loopback addresses at which the agent's process serves node ports.
func (c *Cluster) LoopbackAddresses() []netip.Addr {
	return slices.DeleteFunc(c.node.NodePorts.loopback(), func(a netip.Addr) bool { return !c.node.serves(inet.FamilyOf(a)) })
}

// Behind reports whether any Services are waiting in the backlog. Update compiles some of them even if no Service changes.
func (c *Cluster) Behind() bool { return len(c.backlog) > 0 }

// NodeProblems returns the problems of this node.
func (c *Cluster) NodeProblems() []model.Problem {
	name := c.node.Scheduler
	if c.node.hasScheduler(name) {
		return nil
	}
	return []model.Problem{{
		Object: model.NodeRef(c.node.NodeName), Field: "--ipvs-scheduler", Value: name,
		Reason: "this node's kernel has no such scheduler: " + model.LastResort + " is used for Services that do not name another one, " +
			untilLoaded(name),
	}}
}

// winner returns the Service that wins a frontend: the Service with the best claim, unless another Service has a better claim to a wider
// range that includes the frontend.
func (c *Cluster) winner(key kernel.ServerKey) model.ServiceID {
	best := c.node.claims[key][0]
	if wide, exists := c.node.wider(key, best.kind, best.bound); exists {
		if rival := c.node.claims[wide][0]; rival.kind == healthCheck || wide == key.AllPorts() {
			return rival.service.ID
		}
	}
	return best.service.ID
}

// changes contains the facts learned since the last Compile.
type changes struct {
	services map[model.ServiceID]*model.Service
	// affected selects the unchanged Services to compile. late selects those that can wait.
	affected, late []func(*model.Service) bool
	// base is true if the part that does not depend on Services has changed.
	base bool
}

func (c *Cluster) baseChanges() {
	cfg := c.node.Config
	if cfg.LocalByNodeCIDR && len(c.node.podCIDRs) > 0 {
		cfg.Local.CIDRs = c.node.podCIDRs
	}
	c.state.Base, c.changes.base = Base(cfg), true
}

func (c *Cluster) affects(which func(*model.Service) bool) {
	c.changes.affected = append(c.changes.affected, which)
}

func everyService(*model.Service) bool { return true }

func (c *Cluster) servicesThat(conditions []func(*model.Service) bool) map[model.ServiceID]*model.Service {
	if len(conditions) == 0 {
		return map[model.ServiceID]*model.Service{}
	}
	return c.compiledThat(func(s *Compiled) bool {
		return slices.ContainsFunc(conditions, func(selects func(*model.Service) bool) bool { return selects(s.service) })
	})
}

func (c *Cluster) compiledThat(which func(*Compiled) bool) map[model.ServiceID]*model.Service {
	chosen := map[model.ServiceID]*model.Service{}
	for id, s := range c.services {
		if which(s) {
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
