package compile

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

func (c *Cluster) learnAddresses(addrs []netip.Addr) {
	addrs = slices.Compact(slices.SortedFunc(slices.Values(addrs), netip.Addr.Compare)) // two interfaces may share an address
	if slices.Equal(addrs, c.node.addresses) {
		return
	}
	c.node.addresses = addrs
	c.affects(everyService)
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
	c.node.networks++
	moved := onlyInOne(before, c.node.subnets)
	c.affects(func(svc *model.Service) bool {
		return hasAddress(svc, changed) || hasEndpoint(svc, changed) || hasAddressIn(svc, moved)
	})
}

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
		c.changes.late = append(c.changes.late, everyService)
	}
}

func (c *Cluster) learnNodes(changed map[string]*model.Node) {
	moved, reweighted, ranges := map[netip.Addr]struct{}{}, map[string]struct{}{}, []netip.Prefix{}
	before, equalWeights := c.node.object, c.node.weighted == 0
	for name, object := range changed {
		old := c.node.nodes[name]
		c.node.setNode(name, object)
		ranges = append(ranges, changedRanges(old, object)...)
		if weightOf(old) != weightOf(object) {
			reweighted[name] = struct{}{}
		}
		if name != c.node.NodeName {
			addAddresses(moved, old)
			addAddresses(moved, object)
		}
	}
	c.node.updateOtherNodes(moved)
	if len(ranges) > 0 {
		c.node.updatePodRanges()
	}
	if object, here := changed[c.node.NodeName]; here {
		if c.node.setThisNode(object) && c.node.LocalByNodeCIDR {
			c.baseChanges()
		}
		if !equalToServices(before, object) {
			c.affects(everyService)
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

// hasAddressIn reports whether a Service asks for a load balancer or external IP in one of the ranges.
func hasAddressIn(svc *model.Service, ranges []netip.Prefix) bool {
	return slices.ContainsFunc(slices.Concat(svc.LoadBalancerIPs, svc.ExternalIPs), func(a netip.Addr) bool { return within(ranges, a) })
}

func runsOn(svc *model.Service, nodes map[string]struct{}) bool {
	return slices.ContainsFunc(svc.Slices, func(s *model.EndpointSlice) bool {
		return slices.ContainsFunc(s.Endpoints, func(e model.Endpoint) bool {
			_, ok := nodes[e.Node]
			return ok
		})
	})
}

func (c *Cluster) learnLeft(left []FrontendKey) {
	at := map[netip.Addr]struct{}{}
	for _, s := range left {
		c.node.left[s] = struct{}{}
		at[s.Key.Addr.Addr()] = struct{}{}
	}
	if len(at) > 0 {
		c.affects(func(svc *model.Service) bool { return hasAddress(svc, at) })
	}
}

func (c *Cluster) learnListeners(listeners kernel.Listeners) {
	if c.node.listeners != nil && maps.Equal(listeners, c.node.listeners) {
		return
	}
	c.node.listeners = maps.Clone(listeners)
	c.affects(func(svc *model.Service) bool {
		if _, asks := c.asking[svc.ID]; !asks {
			return false
		}
		_, atNode, waits := c.node.unsettled(svc)
		return atNode || waits
	})
}

func (c *Cluster) learnAPIServer(contacts []netip.AddrPort) {
	set := make(map[netip.AddrPort]struct{}, len(contacts))
	for _, at := range contacts {
		set[at] = struct{}{}
	}
	changed := c.node.apiServer.set(set, c.node.apiServer.endpoints)
	if len(changed) > 0 {
		c.affects(func(svc *model.Service) bool { return c.node.asksFor(svc, changed) })
	}
}

// withAPIServer records the endpoints of the API server's own Service if the Service has changed, and adds the Services whose addresses have joined
// or left these endpoints. If the Service is deleted, the last known endpoints stay.
func (c *Cluster) withAPIServer(changed map[model.ServiceID]*model.Service) map[model.ServiceID]*model.Service {
	endpoints := apiEndpoints(changed[kubernetes])
	if len(endpoints) == 0 {
		return changed
	}
	moved := c.node.apiServer.set(c.node.apiServer.contacts, endpoints)
	if len(moved) == 0 {
		return changed
	}
	all := c.compiledThat(func(s *Compiled) bool { return c.node.asksFor(s.service, moved) })
	maps.Copy(all, changed)
	return all
}

// asksFor reports whether a Service requests one of the addresses, or a node port if one of them is the node's own.
func (n *nodeContext) asksFor(svc *model.Service, addrs map[netip.Addr]struct{}) bool {
	return hasAddress(svc, addrs) || asksForNodePort(svc) && slices.ContainsFunc(n.addresses, func(a netip.Addr) bool {
		_, ok := addrs[a]
		return ok
	})
}
