package compile

import (
	"iter"
	"maps"
	"net/netip"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Unsettled lists the load balancer and external frontends of Services at addresses of nodes and pods that are not served yet:
// whether they will be depends on what an earlier agent left in the kernel (SetLeft). atNode is true if any is an external IP of this
// node, for which it also depends on where processes listen (SetListeners).
func (c *Cluster) Unsettled(all iter.Seq[*model.Service]) (keys []kernel.ServerKey, atNode bool) {
	for svc := range all {
		if svc == nil {
			continue
		}
		for _, group := range addressGroups(svc) {
			for _, addr := range group.addrs {
				own := c.node.own(addr)
				if group.kind == clusterIP || !own && c.node.otherNodes[addr] == "" && c.node.nodeOfPod(addr) == "" {
					continue
				}
				for _, f := range frontendsAt(svc, &c.node, group.kind, addr, group.field) {
					if !c.node.served(f.key) {
						keys = append(keys, f.key)
						atNode = atNode || own && group.kind == externalIP
					}
				}
			}
		}
	}
	return keys, atNode
}

// Sources iterates over what the Services were compiled from, in no order.
func (c *Cluster) Sources(yield func(*model.Service) bool) {
	for _, s := range c.services {
		if !yield(s.service) {
			return
		}
	}
}

// SetLeft records frontends that an earlier agent left in the kernel, and returns the Services that were recompiled.
func (c *Cluster) SetLeft(keys iter.Seq[kernel.ServerKey], touched *want.Touched) []model.ServiceID {
	at := map[netip.Addr]struct{}{}
	for key := range keys {
		c.node.left[key] = struct{}{}
		at[key.Addr.Addr()] = struct{}{}
	}
	if len(at) == 0 {
		return nil
	}
	return c.recompile(func(svc *model.Service) bool { return hasAddress(svc, at) }, touched)
}

// SetListeners sets where processes of this node listen, and returns the Services that were recompiled.
func (c *Cluster) SetListeners(listeners kernel.Listeners, touched *want.Touched) []model.ServiceID {
	if c.node.listeners != nil && maps.Equal(listeners, c.node.listeners) {
		return nil
	}
	c.node.listeners = maps.Clone(listeners)
	if listeners == nil {
		c.node.listeners = kernel.Listeners{}
	}
	return c.recompile(func(svc *model.Service) bool {
		_, atNode := c.Unsettled(func(yield func(*model.Service) bool) { yield(svc) })
		return atNode
	}, touched)
}

// External lists the load balancer and external frontends that Services claim.
func (c *Cluster) External() []kernel.ServerKey {
	var keys []kernel.ServerKey
	for key := range c.node.claims {
		if c.node.served(key) {
			keys = append(keys, key)
		}
	}
	return keys
}
