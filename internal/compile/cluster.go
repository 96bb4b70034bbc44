package compile

import (
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Cluster compiles a changing cluster: it remembers each Service's fragment and who claims which address, so that a change
// recompiles the Services it concerns and no other.
type Cluster struct {
	node     nodeContext
	services map[model.ServiceID]*compiled
	claims   map[kernel.ServerKey][]claim // sorted: the first one has it
	state    *want.State
}

// NewCluster returns a cluster without Services.
func NewCluster(cfg Config) *Cluster {
	return &Cluster{
		node:     newNodeContext(cfg),
		services: map[model.ServiceID]*compiled{},
		claims:   map[kernel.ServerKey][]claim{},
		state:    want.New(Base(cfg)),
	}
}

// Want is the wanted state; it changes with Update.
func (c *Cluster) Want() *want.State { return c.state }

// Services counts the Services served.
func (c *Cluster) Services() int { return len(c.services) }

// Node is this node's object; nil while unknown.
func (c *Cluster) Node() *model.Node { return c.node.object }

// Problems returns the problems of a Service.
func (c *Cluster) Problems(id model.ServiceID) []model.Problem {
	if s := c.services[id]; s != nil {
		return s.problems
	}
	return nil
}

// HealthPort returns the health check port of a Service; Port is 0 where it has none.
func (c *Cluster) HealthPort(id model.ServiceID) HealthPort {
	if s := c.services[id]; s != nil {
		return s.health
	}
	return HealthPort{}
}

// NoLocal returns the policies "Local" of a Service that have endpoints, but none on this node.
func (c *Cluster) NoLocal(id model.ServiceID) []NoLocal {
	if s := c.services[id]; s != nil {
		return s.noLocal
	}
	return nil
}

// NodePortAddresses returns where node ports are served; nil where that is at every address of the node.
func (c *Cluster) NodePortAddresses() []netip.Addr {
	if !c.node.NodePorts.Primary && len(c.node.NodePorts.CIDRs) == 0 {
		return nil
	}
	addrs := []netip.Addr{}
	for _, f := range c.node.Families {
		addrs = append(addrs, c.node.nodePortAddresses(f)...)
	}
	return addrs
}

// Update takes changed Services (nil for a deleted one) and returns the Services that were compiled: the changed ones, those
// whose claims they won, lost or freed, and those with an endpoint at an address that became or ceased to be virtual. The kernel
// objects concerned are added to touched.
func (c *Cluster) Update(changed map[model.ServiceID]*model.Service, touched *want.Touched) []model.ServiceID {
	concerned := map[model.ServiceID]struct{}{}
	for id, svc := range changed {
		concerned[id] = struct{}{}
		c.replaceClaims(id, svc, concerned)
	}
	c.concernEndpoints(c.node.virtual.takeFlipped(), concerned)
	ids := make([]model.ServiceID, 0, len(concerned))
	for id := range concerned {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, model.ServiceID.Compare)

	// All fragments leave before any enters: a key may pass from one Service to another.
	fresh := make([]*compiled, len(ids))
	for i, id := range ids {
		fresh[i] = c.compile(id)
	}
	for _, id := range ids {
		if old := c.services[id]; old != nil {
			c.state.Replace(old.fragment, nil, touched)
		}
	}
	for i, id := range ids {
		if fresh[i].service == nil {
			delete(c.services, id)
			continue
		}
		c.state.Replace(nil, fresh[i].fragment, touched)
		c.services[id] = fresh[i]
	}
	return ids
}

// compile compiles a Service as the claims now stand.
func (c *Cluster) compile(id model.ServiceID) *compiled {
	old := c.services[id]
	if old == nil || old.service == nil {
		return &compiled{}
	}
	return compileService(old, &c.node, c.winner)
}

func (c *Cluster) winner(key kernel.ServerKey) model.ServiceID { return c.claims[key][0].service.ID }

// replaceClaims puts the claims of a Service's new version in place of the old one's. Whoever else claims one of these keys
// is concerned, because the first in line may now be another.
func (c *Cluster) replaceClaims(id model.ServiceID, svc *model.Service, concerned map[model.ServiceID]struct{}) {
	next := &compiled{}
	if svc != nil {
		next = claiming(svc, &c.node)
		c.node.virtual.countEndpoints(svc, 1)
	}
	if old := c.services[id]; old != nil {
		// The fragment stays: it is what the wanted state still holds until Update takes it out.
		next.fragment = old.fragment
		c.node.virtual.countEndpoints(old.service, -1)
		for _, f := range slices.Concat(old.fronts, old.wide) {
			left := c.changeLine(f.key, func(line []claim) []claim {
				return slices.DeleteFunc(line, func(c claim) bool { return c.service.ID == id })
			})
			concernAll(left, concerned)
		}
	}
	for _, f := range slices.Concat(next.fronts, next.wide) {
		longer := c.changeLine(f.key, func(line []claim) []claim {
			line = append(line, claim{svc, f.kind, !f.own})
			slices.SortFunc(line, claim.compare)
			return line
		})
		concernAll(longer, concerned)
	}
	c.services[id] = next
}

// changeLine changes the line of claims for a key, and returns what it is now.
func (c *Cluster) changeLine(key kernel.ServerKey, change func([]claim) []claim) []claim {
	was := binds(key, c.claims[key])
	line := change(c.claims[key])
	c.node.virtual.replace(key.Addr.Addr(), was, binds(key, line))
	if len(line) == 0 {
		delete(c.claims, key)
		return nil
	}
	c.claims[key] = line
	return line
}

// binds says whether the first in line has the address bound for this key. One for all ports is served only together with one of
// these.
func binds(key kernel.ServerKey, line []claim) bool {
	return len(line) > 0 && line[0].bound && key != key.AllPorts()
}

func concernAll(line []claim, concerned map[model.ServiceID]struct{}) {
	for _, c := range line {
		concerned[c.service.ID] = struct{}{}
	}
}
