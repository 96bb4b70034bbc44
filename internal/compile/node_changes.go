package compile

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// SetAddresses sets the addresses of the node's interfaces, and returns the Services that were recompiled.
func (c *Cluster) SetAddresses(addrs []netip.Addr, touched *want.Touched) []model.ServiceID {
	addrs = slices.Compact(slices.SortedFunc(slices.Values(addrs), netip.Addr.Compare)) // two interfaces may share one
	if slices.Equal(addrs, c.node.addresses) {
		return nil
	}
	c.node.addresses = addrs
	return c.recompile(every, touched)
}

// Reconfigure replaces the settings, and returns the Services that were recompiled.
func (c *Cluster) Reconfigure(settings Settings, touched *want.Touched) []model.ServiceID {
	c.node.Settings = settings
	c.replaceBase(touched)
	return c.recompile(every, touched)
}

func (c *Cluster) replaceBase(touched *want.Touched) {
	c.state.Base = c.node.base()
	touched.Rules = true
}

// SetSchedulers says of some schedulers whether this node's kernel has them, and returns the Services that were compiled anew.
func (c *Cluster) SetSchedulers(has map[string]bool, touched *want.Touched) []model.ServiceID {
	before := maps.Clone(c.node.missing)
	for name, there := range has {
		if c.node.missing[name] = struct{}{}; there {
			delete(c.node.missing, name)
		}
	}
	if maps.Equal(before, c.node.missing) {
		return nil
	}
	return c.recompile(every, touched)
}

// DoubtfulSchedulers are those that may have come since they were missing, and the node's own.
func (c *Cluster) DoubtfulSchedulers() []string {
	doubtful := maps.Clone(c.node.missing)
	doubtful[c.node.Scheduler] = struct{}{}
	return slices.Sorted(maps.Keys(doubtful))
}

// NodeProblems are those of this node.
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

// UpdateNodes takes changed Node objects (nil for one that is gone) and returns the Services that were compiled anew.
func (c *Cluster) UpdateNodes(changed map[string]*model.Node, touched *want.Touched) []model.ServiceID {
	moved, reweighted := map[netip.Addr]struct{}{}, map[string]struct{}{}
	before := c.node.object
	for name, node := range changed {
		old := c.node.nodes[name]
		c.setNode(name, node)
		if weightOf(old) != weightOf(node) {
			reweighted[name] = struct{}{}
		}
		if name != c.node.NodeName {
			addAddresses(moved, old)
			addAddresses(moved, node)
		}
	}
	c.nameOtherNodes(moved)
	if node, here := changed[c.node.NodeName]; here {
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
		delete(c.node.nodes, name)
		return
	}
	c.node.nodes[name] = node
}

// setThisNode takes over what this node's object says.
func (c *Cluster) setThisNode(object *model.Node, touched *want.Touched) {
	c.node.object = object
	if object == nil {
		return
	}
	if len(object.Addresses) > 0 {
		c.node.primaries = object.Addresses
	}
	if len(object.PodCIDRs) == 0 || slices.Equal(object.PodCIDRs, c.node.podCIDRs) {
		return
	}
	c.node.podCIDRs = object.PodCIDRs
	if c.node.LocalFromNode {
		c.replaceBase(touched)
	}
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

// nameOtherNodes says who has the addresses that moved; of two nodes with one address, the first by name.
func (c *Cluster) nameOtherNodes(moved map[netip.Addr]struct{}) {
	if len(moved) == 0 {
		return
	}
	for a := range moved {
		delete(c.node.otherNodes, a)
	}
	for _, name := range slices.Sorted(maps.Keys(c.node.nodes)) {
		if name == c.node.NodeName {
			continue
		}
		for _, a := range c.node.nodes[name].Addresses {
			if _, ok := moved[a]; ok && c.node.otherNodes[a] == "" {
				c.node.otherNodes[a] = name
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
