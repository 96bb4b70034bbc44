package compile

import (
	"maps"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Update applies changed Services (deleted ones are nil), and returns the compiled Services. These are the changed Services and, within a limit,
// those affected by the change. The others wait in the backlog. It adds the affected kernel objects to touched.
func (c *Cluster) Update(changed map[model.ServiceID]*model.Service, touched *want.Touched) []model.ServiceID {
	ids := append(c.update(changed, touched), c.fitSets(touched)...)
	return slices.Compact(slices.SortedFunc(slices.Values(ids), model.ServiceID.Compare))
}

// An update affects the Services that claim a frontend whose best claim has changed, and the Services with an endpoint at an address that became
// virtual or is no longer virtual.
func (c *Cluster) update(changed map[model.ServiceID]*model.Service, touched *want.Touched) (ids []model.ServiceID) {
	before := claimsBefore{map[kernel.ServerKey]claimant{}, map[kernel.ServerKey][]model.ServiceID{}}
	next := c.claimAgain(c.withAPIServer(changed), before)
	maps.Copy(next, c.claimAgain(c.contested(before), before))
	ids = slices.Collect(maps.Keys(next))
	size := c.recompileAll(ids, touched)
	affected := map[model.ServiceID]struct{}{}
	for key, best := range before.best {
		if claims := c.node.claims[key]; len(claims) > 0 && claims[0].claimant() != best {
			for _, claim := range claims {
				affected[claim.service.ID] = struct{}{}
			}
		}
	}
	if moved := c.node.virtual.takeChanged(); len(moved) > 0 {
		maps.Copy(affected, keySet(c.compiledThat(func(s *Compiled) bool { return hasEndpoint(s.service, moved) })))
	}
	maps.DeleteFunc(affected, func(id model.ServiceID, _ struct{}) bool { return next[id] != nil })

	work, least := max(size, c.node.work.little), min(len(c.backlog), 1) // a Service that waited in the backlog
	if len(next) == 0 {
		work, least = c.node.work.much, 1
	}
	c.backlog = c.backlog.without(ids).with(affected)
	late := c.backlog.take(work, least, func(id model.ServiceID) int { return c.services[id].size })
	c.recompileAll(late, touched)
	return append(ids, late...)
}

type claimsBefore struct {
	// best contains the winning claims to frontends that several Services claim.
	best map[kernel.ServerKey]claimant
	// balancers contains the Services whose load balancers claimed a frontend of atNodes.
	balancers map[kernel.ServerKey][]model.ServiceID
}

// claimAgain replaces the claims of Services. Deleted Services are nil.
func (c *Cluster) claimAgain(changed map[model.ServiceID]*model.Service, before claimsBefore) map[model.ServiceID]*Compiled {
	next := make(map[model.ServiceID]*Compiled, len(changed))
	for id, svc := range changed { // new claims depend on the served frontends, so compute them before any claim changes
		next[id] = &Compiled{}
		if svc != nil {
			next[id] = claimsOf(svc, &c.node)
		}
	}
	for id, claims := range next {
		c.replaceAtNodes(id, claims.atNodes)
		if delete(c.asking, id); claims.service != nil && c.node.asksForNodes(claims.service) {
			c.asking[id] = struct{}{}
		}
	}
	for id, claims := range next {
		c.replaceClaims(id, claims, before)
	}
	return next
}

func (c *Cluster) replaceAtNodes(id model.ServiceID, keys []kernel.ServerKey) {
	if old := c.services[id]; old != nil {
		for _, key := range old.atNodes {
			if delete(c.node.atNodes[key], id); len(c.node.atNodes[key]) == 0 {
				delete(c.node.atNodes, key)
			}
		}
	}
	for _, key := range keys {
		if c.node.atNodes[key] == nil {
			c.node.atNodes[key] = map[model.ServiceID]struct{}{}
		}
		c.node.atNodes[key][id] = struct{}{}
	}
}

// contested returns the Services that gain or lose an external IP because a load balancer's claim appeared or disappeared.
func (c *Cluster) contested(before claimsBefore) map[model.ServiceID]*model.Service {
	contested := map[model.ServiceID]*model.Service{}
	for key, balancers := range before.balancers {
		if slices.Equal(balancers, balancersOf(c.node.claims[key])) {
			continue
		}
		for id := range c.node.atNodes[key] {
			svc := c.services[id].service
			claims := slices.ContainsFunc(c.node.claims[key], func(c claim) bool { return c.kind == externalIP && c.service.ID == id })
			if _, admitted := c.node.admits(svc, frontend{key: key, kind: externalIP}); admitted != claims {
				contested[id] = svc
			}
		}
	}
	return contested
}

// recompileAll compiles Services with the current claims, and returns the size of the result.
func (c *Cluster) recompileAll(ids []model.ServiceID, touched *want.Touched) (size int) {
	slices.SortFunc(ids, model.ServiceID.Compare)
	// Remove all old fragments before adding any new one, because a key may move from one Service to another.
	updated := make([]*Compiled, len(ids))
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

func (c *Cluster) compile(id model.ServiceID) *Compiled {
	old := c.services[id]
	if old == nil || old.service == nil {
		return &Compiled{}
	}
	return compileService(old, &c.node, c.winner)
}

// replaceClaims replaces the claims of a Service's old version with the claims of the new one. If other Services also
// claim a frontend, it records the best claim in before, because those Services are affected only if the best claim
// changes.
func (c *Cluster) replaceClaims(id model.ServiceID, next *Compiled, before claimsBefore) {
	if old := c.services[id]; old == nil {
		c.node.virtual.replaceEndpoints(nil, next.service)
	} else {
		c.node.virtual.replaceEndpoints(old.service, next.service)
		// Keep the fragment, because it is in the wanted state until Update removes it.
		next.fragment, next.lists = old.fragment, old.lists
		for _, f := range slices.Concat(old.frontends, old.allPorts, old.wide) {
			c.changeClaims(f.key, f.claimOf(old.service), removeClaim, before)
		}
	}
	for _, f := range slices.Concat(next.frontends, next.allPorts, next.wide) {
		c.changeClaims(f.key, f.claimOf(next.service), insertClaim, before)
	}
	c.services[id] = next
}

// changeClaims adds or removes one claim to a key.
func (c *Cluster) changeClaims(key kernel.ServerKey, one claim, change func([]claim, claim) []claim, before claimsBefore) {
	claims := c.node.claims[key]
	if _, known := before.best[key]; !known && slices.ContainsFunc(claims, func(o claim) bool { return o.service.ID != one.service.ID }) {
		before.best[key] = claims[0].claimant()
	}
	if _, known := before.balancers[key]; !known && one.kind == loadBalancerIP && len(c.node.atNodes[key]) > 0 {
		before.balancers[key] = balancersOf(claims)
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

// fitSets lowers the share of all Services while a set is nearly full, and raises it when there is room again. Services with few entries are not
// affected. It returns the Services that were recompiled.
func (c *Cluster) fitSets(touched *want.Touched) (recompiled []model.ServiceID) {
	for c.node.share > minShare && c.state.Fullest() > c.node.bounds.room {
		c.node.share /= 2
		recompiled = append(recompiled, c.update(c.compiledThat(func(s *Compiled) bool {
			return slices.Max(append(slices.Collect(maps.Values(s.entries())), 0)) > c.node.share
		}), touched)...)
	}
	for c.node.setsAreFull() && c.hasRoomFor(2*c.node.share) {
		c.node.share *= 2
		recompiled = append(recompiled, c.update(c.compiledThat(func(s *Compiled) bool { return s.overShare }), touched)...)
	}
	return recompiled
}

// hasRoomFor reports whether all sets would still have room if every Service that exceeds its share used the given
// share.
func (c *Cluster) hasRoomFor(share int) bool {
	sizes := c.state.Sizes()
	for _, s := range c.services {
		if !s.overShare {
			continue
		}
		for set := range sizes {
			sizes[set] += max(share-s.sizes[set], 0)
		}
	}
	return slices.Max(slices.Collect(maps.Values(sizes))) <= c.node.bounds.room
}
