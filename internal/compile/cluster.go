package compile

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Cluster compiles a changing cluster. It remembers each Service's fragment and the claims to each frontend, so that a change recompiles
// only the affected Services.
type Cluster struct {
	node     nodeContext
	services map[model.ServiceID]*compiled
	state    *want.State
	backlog  backlog
	// changes wait for Compile.
	changes changes
}

// NewCluster returns a cluster without Services.
func NewCluster(cfg Config) *Cluster {
	return &Cluster{
		node:     newNodeContext(cfg),
		services: map[model.ServiceID]*compiled{},
		state:    want.New(Base(cfg)),
	}
}

// Want returns the wanted state, which Update changes.
func (c *Cluster) Want() *want.State { return c.state }

// Services counts the served Services.
func (c *Cluster) Services() int { return len(c.services) }

// Namespaces counts the namespaces of the served Services. It iterates over all Services.
func (c *Cluster) Namespaces() int {
	names := map[string]struct{}{}
	for id := range c.services {
		names[id.Namespace] = struct{}{}
	}
	return len(names)
}

// Node returns this node's object; nil while unknown.
func (c *Cluster) Node() *model.Node { return c.node.object }

// Problems returns the problems of a Service.
func (c *Cluster) Problems(id model.ServiceID) []model.Problem {
	if s := c.services[id]; s != nil {
		return s.problems
	}
	return nil
}

// NodePortAddresses returns the addresses at which node ports are served; nil means every address of the node.
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

// LoopbackAddresses returns the loopback addresses at which the agent's process serves node ports.
func (c *Cluster) LoopbackAddresses() []netip.Addr {
	return slices.DeleteFunc(c.node.NodePorts.loopback(), func(a netip.Addr) bool { return !c.node.serves(inet.FamilyOf(a)) })
}

// Update takes over changed Services (nil for a deleted one) and returns the compiled Services: those that changed and, as far as that costs
// little, those that the change affects. The others of these wait in the backlog. It adds the affected kernel objects to touched.
func (c *Cluster) Update(changed map[model.ServiceID]*model.Service, touched *want.Touched) []model.ServiceID {
	ids := append(c.update(changed, touched), c.fitSets(touched)...)
	return slices.Compact(slices.SortedFunc(slices.Values(ids), model.ServiceID.Compare))
}

// update affects those that claim a frontend whose best claim changed, and those with an endpoint at an address that became or ceased to be
// virtual.
func (c *Cluster) update(changed map[model.ServiceID]*model.Service, touched *want.Touched) (ids []model.ServiceID) {
	next := map[model.ServiceID]*compiled{}
	for id, svc := range c.withAPIServer(changed) { // before any claim changes: the served frontends decide about new claims
		next[id] = &compiled{}
		if svc != nil {
			next[id] = claimsOf(svc, &c.node)
		}
		ids = append(ids, id)
	}
	before := map[kernel.ServerKey]claimant{}
	for id, claims := range next {
		c.replaceClaims(id, claims, before)
	}
	size := c.recompileAll(ids, touched)
	affected := map[model.ServiceID]struct{}{}
	for key, best := range before {
		if claims := c.node.claims[key]; len(claims) > 0 && claims[0].claimant() != best {
			addClaimants(affected, claims)
		}
	}
	c.addServicesAt(c.node.virtual.takeChanged(), affected)
	maps.DeleteFunc(affected, func(id model.ServiceID, _ struct{}) bool { return next[id] != nil })

	work, least := max(size, c.node.work.little), min(len(c.backlog), 1) // one that waited before
	if len(next) == 0 {
		work, least = c.node.work.much, 1
	}
	c.backlog = c.backlog.without(next).with(affected)
	late := c.backlog.take(work, least, func(id model.ServiceID) int { return c.services[id].size })
	c.recompileAll(late, touched)
	return append(ids, late...)
}

// recompileAll compiles Services with the current claims, and returns the size of the result.
func (c *Cluster) recompileAll(ids []model.ServiceID, touched *want.Touched) (size int) {
	slices.SortFunc(ids, model.ServiceID.Compare)
	// Remove all old fragments before adding any new one, because a key may move from one Service to another.
	updated := make([]*compiled, len(ids))
	for i, id := range ids {
		updated[i] = c.compile(id)
		size += updated[i].size
	}
	for _, id := range ids {
		if old := c.services[id]; old != nil {
			c.state.Replace(old.fragment, nil, touched)
		}
	}
	for i, id := range ids {
		if updated[i].service == nil {
			delete(c.services, id)
			continue
		}
		c.state.Replace(nil, updated[i].fragment, touched)
		c.services[id] = updated[i]
	}
	return size
}

// compile compiles a Service with the current claims.
func (c *Cluster) compile(id model.ServiceID) *compiled {
	old := c.services[id]
	if old == nil || old.service == nil {
		return &compiled{}
	}
	return compileService(old, &c.node, c.winner)
}

// winner returns the Service that has a frontend: that with the best claim, unless another one has the better claim to what is wider.
func (c *Cluster) winner(key kernel.ServerKey) model.ServiceID {
	best := c.node.claims[key][0]
	if wide, exists := c.node.wider(key, best.kind, best.bound); exists {
		if rival := c.node.claims[wide][0]; rival.kind == healthCheck || wide == key.AllPorts() {
			return rival.service.ID
		}
	}
	return best.service.ID
}

// replaceClaims replaces the claims of a Service's old version with those of the new one. It adds the best claims to frontends that other
// Services claim, too, to before: such a Service is affected only if the best claim changes.
func (c *Cluster) replaceClaims(id model.ServiceID, next *compiled, before map[kernel.ServerKey]claimant) {
	if old := c.services[id]; old == nil {
		c.node.virtual.replaceEndpoints(nil, next.service)
	} else {
		c.node.virtual.replaceEndpoints(old.service, next.service)
		// Keep the fragment: the wanted state holds it until Update removes it.
		next.fragment = old.fragment
		for _, f := range slices.Concat(old.frontends, old.allPorts, old.wide) {
			c.changeClaims(f.key, f.claimOf(old.service), removeClaim, before)
		}
	}
	for _, f := range slices.Concat(next.frontends, next.allPorts, next.wide) {
		c.changeClaims(f.key, f.claimOf(next.service), insertClaim, before)
	}
	c.services[id] = next
}

// changeClaims inserts or removes one claim to a key.
func (c *Cluster) changeClaims(key kernel.ServerKey, one claim, change func([]claim, claim) []claim, before map[kernel.ServerKey]claimant) {
	claims := c.node.claims[key]
	if _, known := before[key]; !known && slices.ContainsFunc(claims, func(o claim) bool { return o.service.ID != one.service.ID }) {
		before[key] = claims[0].claimant()
	}
	was := binds(key, claims)
	claims = change(claims, one)
	c.node.virtual.replace(key.Addr.Addr(), was, binds(key, claims))
	if len(claims) == 0 {
		delete(c.node.claims, key)
		delete(c.node.left, FrontendKey{key, false})
		delete(c.node.left, FrontendKey{key, true})
		return
	}
	c.node.claims[key] = claims
}

// binds reports whether the winning claim binds the address. A claim to all ports does not count: it is served only together with a per-port
// claim.
func binds(key kernel.ServerKey, claims []claim) bool {
	return len(claims) > 0 && claims[0].bound && key != key.AllPorts()
}

func addClaimants(concerned map[model.ServiceID]struct{}, claims []claim) {
	for _, c := range claims {
		concerned[c.service.ID] = struct{}{}
	}
}
