package compile

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

func (c *Cluster) learnAddresses(addrs []netip.Addr) {
	addrs = slices.Compact(slices.SortedFunc(slices.Values(addrs), netip.Addr.Compare)) // two interfaces may share one
	if slices.Equal(addrs, c.node.addresses) {
		return
	}
	c.node.addresses = addrs
	c.affects(every)
}

func (c *Cluster) learnNetwork(network kernel.Network) {
	changed := map[netip.Addr]struct{}{}
	for a, role := range network {
		if c.node.network[a] != role {
			changed[a] = struct{}{}
		}
	}
	for a := range c.node.network {
		if _, stays := network[a]; !stays {
			changed[a] = struct{}{}
		}
	}
	if len(changed) == 0 {
		return
	}
	before := c.node.subnets
	c.node.network, c.node.subnets = network, network.Subnets()
	moved := onlyInOne(before, c.node.subnets)
	c.affects(func(svc *model.Service) bool {
		return hasAddress(svc, changed) || hasEndpoint(svc, changed) || hasAddressIn(svc, moved)
	})
}

// onlyInOne lists the ranges that one of two lists has and the other does not.
func onlyInOne(a, b []netip.Prefix) []netip.Prefix {
	only := slices.DeleteFunc(slices.Clone(a), func(r netip.Prefix) bool { return slices.Contains(b, r) })
	for _, r := range b {
		if !slices.Contains(a, r) {
			only = append(only, r)
		}
	}
	return only
}

func (c *Cluster) learnSchedulers(has map[string]bool) {
	before := maps.Clone(c.node.missing)
	for name, exists := range has {
		if c.node.missing[name] = struct{}{}; exists {
			delete(c.node.missing, name)
		}
	}
	if !maps.Equal(before, c.node.missing) {
		c.changes.late = append(c.changes.late, every)
	}
}

// SchedulersToCheck lists the node's default scheduler and all missing ones, whose modules may have been installed since.
func (c *Cluster) SchedulersToCheck() []string {
	check := maps.Clone(c.node.missing)
	check[c.node.Scheduler] = struct{}{}
	return slices.Sorted(maps.Keys(check))
}

// LacksSchedulers reports whether a scheduler is missing.
func (c *Cluster) LacksSchedulers() bool { return len(c.node.missing) > 0 }

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

func (c *Cluster) learnNodes(changed map[string]*model.Node) {
	moved, reweighted, ranges := map[netip.Addr]struct{}{}, map[string]struct{}{}, []netip.Prefix{}
	before, equalWeights := c.node.object, c.node.weighted == 0
	for name, object := range changed {
		old := c.node.nodes[name]
		c.setNode(name, object)
		ranges = append(ranges, changedRanges(old, object)...)
		if weightOf(old) != weightOf(object) {
			reweighted[name] = struct{}{}
		}
		if name != c.node.NodeName {
			addAddresses(moved, old)
			addAddresses(moved, object)
		}
	}
	c.updateOtherNodes(moved)
	if len(ranges) > 0 {
		c.updatePodRanges()
	}
	if object, here := changed[c.node.NodeName]; here {
		c.setThisNode(object)
		if !equalToServices(before, object) {
			c.affects(every)
			return
		}
	}
	if len(moved)+len(ranges) > 0 {
		c.affects(func(svc *model.Service) bool {
			return hasAddress(svc, moved) || len(ranges) > 0 && hasAddressIn(svc, ranges)
		})
	}
	if firstOrLast := equalWeights != (c.node.weighted == 0); firstOrLast || len(reweighted) > 0 {
		c.changes.late = append(c.changes.late, func(svc *model.Service) bool { return firstOrLast || runsOn(svc, reweighted) })
	}
}

// equalToServices reports whether all Services compile the same with both versions of this node's object.
func equalToServices(a, b *model.Node) bool {
	return a != nil && b != nil && slices.Equal(a.Addresses, b.Addresses) && a.Zone == b.Zone
}

func (c *Cluster) setNode(name string, object *model.Node) {
	if weightOf(c.node.nodes[name]) > 1 {
		c.node.weighted--
	}
	if weightOf(object) > 1 {
		c.node.weighted++
	}
	if object == nil {
		delete(c.node.nodes, name)
		return
	}
	c.node.nodes[name] = object
}

// setThisNode takes over this node's object.
func (c *Cluster) setThisNode(object *model.Node) {
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
	if c.node.LocalByNodeCIDR {
		c.baseChanges()
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

// updateOtherNodes finds the nodes with the given addresses. If two nodes have the same address, the first by name counts.
func (c *Cluster) updateOtherNodes(addrs map[netip.Addr]struct{}) {
	if len(addrs) == 0 {
		return
	}
	for a := range addrs {
		delete(c.node.otherNodes, a)
	}
	for _, name := range slices.Sorted(maps.Keys(c.node.nodes)) {
		if name == c.node.NodeName {
			continue
		}
		for _, a := range c.node.nodes[name].Addresses {
			if _, ok := addrs[a]; ok && c.node.otherNodes[a] == "" {
				c.node.otherNodes[a] = name
			}
		}
	}
}

// changedRanges lists the pod ranges of two versions of a Node object if they differ.
func changedRanges(a, b *model.Node) []netip.Prefix {
	var before, after []netip.Prefix
	if a != nil {
		before = a.PodCIDRs
	}
	if b != nil {
		after = b.PodCIDRs
	}
	if slices.Equal(before, after) {
		return nil
	}
	return slices.Concat(before, after)
}

// updatePodRanges collects the pod ranges of all nodes. If two nodes have the same range, the first by name counts.
func (c *Cluster) updatePodRanges() {
	c.node.podRanges, c.node.podRangeBits = map[netip.Prefix]string{}, map[int]struct{}{}
	for _, name := range slices.Sorted(maps.Keys(c.node.nodes)) {
		for _, r := range c.node.nodes[name].PodCIDRs {
			if c.node.podRanges[r] == "" {
				c.node.podRanges[r] = name
			}
			c.node.podRangeBits[r.Bits()] = struct{}{}
		}
	}
}

// hasAddressIn reports whether a Service asks for a load balancer or external IP in one of the ranges.
func hasAddressIn(svc *model.Service, ranges []netip.Prefix) bool {
	return slices.ContainsFunc(slices.Concat(svc.LoadBalancerIPs, svc.ExternalIPs), func(a netip.Addr) bool { return within(ranges, a) })
}

// hasAddress reports whether a Service asks for one of the addresses.
func hasAddress(svc *model.Service, addrs map[netip.Addr]struct{}) bool {
	among := func(a netip.Addr) bool {
		_, ok := addrs[a]
		return ok
	}
	return slices.ContainsFunc(svc.ClusterIPs, among) || slices.ContainsFunc(svc.LoadBalancerIPs, among) ||
		slices.ContainsFunc(svc.ExternalIPs, among)
}

// runsOn reports whether a Service has an endpoint on one of the nodes.
func runsOn(svc *model.Service, nodes map[string]struct{}) bool {
	return slices.ContainsFunc(svc.Slices, func(s *model.EndpointSlice) bool {
		return slices.ContainsFunc(s.Endpoints, func(e model.Endpoint) bool {
			_, ok := nodes[e.Node]
			return ok
		})
	})
}
