package compile

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// SetAddresses says which addresses the node's interfaces have, and returns the Services that were compiled anew because
// of that.
func (c *Cluster) SetAddresses(addrs []netip.Addr, touched *want.Touched) []model.ServiceID {
	addrs = slices.Compact(slices.SortedFunc(slices.Values(addrs), netip.Addr.Compare)) // two interfaces may share one
	if slices.Equal(addrs, c.place.addresses) {
		return nil
	}
	c.place.addresses = addrs
	return c.recompile(every, touched)
}

// Reconfigure takes another configuration for the same node and families, and returns the Services that were compiled anew.
func (c *Cluster) Reconfigure(cfg Config, touched *want.Touched) []model.ServiceID {
	if cfg.LocalFromNode && c.place.LocalFromNode {
		cfg.Local.CIDRs = c.place.Local.CIDRs // what the node's object said, though it may be gone by now
	}
	c.place.Config = cfg
	c.state.Base = Base(cfg)
	touched.Rules = true
	if c.place.node != nil {
		c.setThisNode(c.place.node, touched)
	}
	return c.recompile(every, touched)
}

// SetSchedulers says of some schedulers whether this node's kernel has them, and returns the Services that were compiled anew.
func (c *Cluster) SetSchedulers(has map[string]bool, touched *want.Touched) []model.ServiceID {
	before := maps.Clone(c.place.missing)
	for name, there := range has {
		if c.place.missing[name] = struct{}{}; there {
			delete(c.place.missing, name)
		}
	}
	if maps.Equal(before, c.place.missing) {
		return nil
	}
	return c.recompile(every, touched)
}

// DoubtfulSchedulers are those that may have come since they were missing, and the node's own.
func (c *Cluster) DoubtfulSchedulers() []string {
	doubtful := maps.Clone(c.place.missing)
	doubtful[c.place.Scheduler] = struct{}{}
	return slices.Sorted(maps.Keys(doubtful))
}

// NodeProblems are those of this node.
func (c *Cluster) NodeProblems() []model.Problem {
	name := c.place.Scheduler
	if c.place.hasScheduler(name) {
		return nil
	}
	return []model.Problem{{
		Object: "Node " + c.place.Node, Field: "--ipvs-scheduler", Value: name,
		Message: "this node's kernel has no such scheduler: " + model.LastResort + " is used for Services that do not name another one, " +
			untilLoaded(name),
	}}
}

// UpdateNodes takes changed Node objects (nil for one that is gone) and returns the Services that were compiled anew.
func (c *Cluster) UpdateNodes(changed map[string]*model.Node, touched *want.Touched) []model.ServiceID {
	moved, reweighted := map[netip.Addr]struct{}{}, map[string]struct{}{}
	before := c.place.node
	for name, node := range changed {
		old := c.place.nodes[name]
		c.setNode(name, node)
		if weightOf(old) != weightOf(node) {
			reweighted[name] = struct{}{}
		}
		if name != c.place.Node {
			addAddresses(moved, old)
			addAddresses(moved, node)
		}
	}
	c.nameNeighbours(moved)
	if node, here := changed[c.place.Node]; here {
		c.setThisNode(node, touched)
		if !sameToServices(before, node) {
			return c.recompile(every, touched)
		}
	}
	if len(moved)+len(reweighted) == 0 {
		return nil
	}
	return c.recompile(func(svc *model.Service) bool {
		return has(svc, moved) || len(reweighted) > 0 && runsOn(svc, reweighted)
	}, touched)
}

// sameToServices says whether no Service is compiled otherwise because this node's object is another now.
func sameToServices(a, b *model.Node) bool {
	return a != nil && b != nil && slices.Equal(a.Addresses, b.Addresses) && a.Zone == b.Zone
}

func every(*model.Service) bool { return true }

func (c *Cluster) setNode(name string, node *model.Node) {
	if node == nil {
		delete(c.place.nodes, name)
		return
	}
	c.place.nodes[name] = node
}

// setThisNode takes what this node's object says.
func (c *Cluster) setThisNode(node *model.Node, touched *want.Touched) {
	c.place.node = node
	if node != nil && len(node.Addresses) > 0 {
		c.place.primaries = node.Addresses // node ports do not close, nor their connections end, because an object is gone
	}
	if !c.place.LocalFromNode || node == nil || len(node.PodCIDRs) == 0 {
		return // pods do not get other addresses because an object is gone
	}
	c.place.Local.CIDRs = node.PodCIDRs
	c.state.Base = Base(c.place.Config)
	touched.Rules = true
}

func weightOf(node *model.Node) uint32 {
	if node == nil || !node.WeightSet {
		return 1
	}
	return node.Weight
}

func addAddresses(to map[netip.Addr]struct{}, node *model.Node) {
	if node == nil {
		return
	}
	for _, a := range node.Addresses {
		to[a] = struct{}{}
	}
}

// nameNeighbours says who has the addresses that moved; of two nodes with one address, the first by name.
func (c *Cluster) nameNeighbours(moved map[netip.Addr]struct{}) {
	if len(moved) == 0 {
		return
	}
	for a := range moved {
		delete(c.place.neighbours, a)
	}
	for _, name := range slices.Sorted(maps.Keys(c.place.nodes)) {
		if name == c.place.Node {
			continue
		}
		for _, a := range c.place.nodes[name].Addresses {
			if _, ok := moved[a]; ok && c.place.neighbours[a] == "" {
				c.place.neighbours[a] = name
			}
		}
	}
}

// has says whether a Service has one of the addresses.
func has(svc *model.Service, addrs map[netip.Addr]struct{}) bool {
	among := func(a netip.Addr) bool {
		_, ok := addrs[a]
		return ok
	}
	return slices.ContainsFunc(svc.ClusterIPs, among) || slices.ContainsFunc(svc.LoadBalancerIPs, among) ||
		slices.ContainsFunc(svc.ExternalIPs, among)
}

// runsOn says whether a Service has an endpoint on one of the nodes.
func runsOn(svc *model.Service, nodes map[string]struct{}) bool {
	return slices.ContainsFunc(svc.Slices, func(s *model.EndpointSlice) bool {
		return slices.ContainsFunc(s.Endpoints, func(e model.Endpoint) bool {
			_, ok := nodes[e.Node]
			return ok
		})
	})
}

// recompile compiles the Services that are concerned by a change of their surroundings.
func (c *Cluster) recompile(concerned func(*model.Service) bool, touched *want.Touched) []model.ServiceID {
	again := map[model.ServiceID]*model.Service{}
	for id, s := range c.services {
		if concerned(s.service) {
			again[id] = s.service
		}
	}
	return c.Update(again, touched)
}
