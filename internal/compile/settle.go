package compile

import (
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// FrontendKey is a frontend that the kernel may already have: a virtual server, and whether its address is a ClusterIP.
type FrontendKey struct {
	Key       kernel.ServerKey
	ClusterIP bool
}

// Unsettled lists, of the Services that Compile will compile, or of all, the frontends at node and pod addresses, and in the node's networks,
// that are not served yet, except node ports. They are served depending on what an earlier agent left in the kernel (Facts.Left). atNode is true
// if any also depends on where processes listen (Facts.Listeners), and waits if a process had the port of any when that was last learned.
func (c *Cluster) Unsettled(all bool) (unsettled []FrontendKey, atNode, waits bool) {
	which := c.changes.affected
	if all {
		which = []func(*model.Service) bool{every}
	}
	claimants := c.servicesThat(which)
	maps.Copy(claimants, c.changes.services)
	return c.unsettled(maps.Values(claimants))
}

func (c *Cluster) unsettled(all iter.Seq[*model.Service]) (unsettled []FrontendKey, atNode, waits bool) {
	for svc := range all {
		if svc == nil || !c.node.asksForNodes(svc) {
			continue
		}
		left, _ := admitPorts(svc, &c.node)
		for _, group := range addressGroups(svc) {
			for _, addr := range group.addrs {
				if !c.node.ofANode(group.kind, addr) {
					continue
				}
				if left.takeAddress(svc, group.kind, inet.FamilyOf(addr)) != nil {
					continue
				}
				for _, f := range frontendsAt(svc, left.ports, &c.node, group.kind, addr, group.field) {
					if !c.node.served(svc, f) {
						unsettled = append(unsettled, f.frontendKey())
						needed, occupied := c.node.needsListeners(svc, f), c.node.listeners.At(f.key)
						atNode, waits = atNode || needed && !occupied, waits || needed && occupied
					}
				}
			}
		}
	}
	return unsettled, atNode, waits
}

// asksForNodes reports whether a Service asks for an address of a node or pod, or in the node's networks, as few do.
func (n *nodeContext) asksForNodes(svc *model.Service) bool {
	return slices.ContainsFunc(addressGroups(svc), func(group addressGroup) bool {
		return slices.ContainsFunc(group.addrs, func(a netip.Addr) bool { return n.ofANode(group.kind, a) })
	})
}

func (n *nodeContext) ofANode(kind frontendKind, a netip.Addr) bool {
	return n.own(a) || kind != clusterIP && (n.otherNodes[a] != "" || n.nodeOfPod(a) != "") || kind == externalIP && within(n.subnets, a)
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
		_, atNode, waits := c.unsettled(func(yield func(*model.Service) bool) { yield(svc) })
		return atNode || waits
	})
}

// ForgetListeners makes new claims to ports at the node's own addresses wait until the sockets are known again.
func (c *Cluster) ForgetListeners() { c.node.listeners = nil }

// Claimed lists the frontends that Services claim, except node ports.
func (c *Cluster) Claimed() []FrontendKey {
	claimed := map[FrontendKey]struct{}{}
	for key, claims := range c.node.claims {
		for _, claim := range claims {
			if claim.kind != nodePort && claim.kind != healthCheck && key.Addr.Addr() != everywhere {
				claimed[FrontendKey{key, claim.kind == clusterIP}] = struct{}{}
			}
		}
	}
	return slices.Collect(maps.Keys(claimed))
}
