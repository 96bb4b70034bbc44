package compile

import (
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// FrontendKey is a frontend that the kernel may already have: a virtual server, and whether its address is a ClusterIP.
type FrontendKey struct {
	Key       kernel.ServerKey
	ClusterIP bool
}

// Unsettled lists the frontends of Services at node and pod addresses, and in the node's networks, that are not served yet, except node ports.
// They are served depending on what an earlier agent left in the kernel (SetLeft). atNode is true if any also depends on where processes listen
// (SetListeners), and waits if a process had the port of any when that was last set.
func (c *Cluster) Unsettled(all iter.Seq[*model.Service]) (unsettled []FrontendKey, atNode, waits bool) {
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

// Sources iterates over the inputs of the compiled Services, in no order.
func (c *Cluster) Sources(yield func(*model.Service) bool) {
	for _, s := range c.services {
		if !yield(s.service) {
			return
		}
	}
}

// SetLeft records frontends that an earlier agent left in the kernel, and returns the Services that were recompiled.
func (c *Cluster) SetLeft(left iter.Seq[FrontendKey], touched *want.Touched) []model.ServiceID {
	at := map[netip.Addr]struct{}{}
	for s := range left {
		c.node.left[s] = struct{}{}
		at[s.Key.Addr.Addr()] = struct{}{}
	}
	if len(at) == 0 {
		return nil
	}
	return c.recompile(func(svc *model.Service) bool { return hasAddress(svc, at) }, touched)
}

// SetListeners sets the sockets on which the node's processes listen, and returns the Services that were recompiled.
func (c *Cluster) SetListeners(listeners kernel.Listeners, touched *want.Touched) []model.ServiceID {
	if c.node.listeners != nil && maps.Equal(listeners, c.node.listeners) {
		return nil
	}
	c.node.listeners = maps.Clone(listeners)
	if listeners == nil {
		c.node.listeners = kernel.Listeners{}
	}
	return c.recompile(func(svc *model.Service) bool {
		_, atNode, waits := c.Unsettled(func(yield func(*model.Service) bool) { yield(svc) })
		return atNode || waits
	}, touched)
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
