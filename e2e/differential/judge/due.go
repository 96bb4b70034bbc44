package judge

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-ipvs/kube-ipvs/e2e/differential/draw"
)

// This file computes what docs/services.md promises for the objects. Rules compare kube-ipvs with that promise, so that
// no rule excuses more than it describes.

// ourDestinations returns the destinations that kube-ipvs must create.
func (c *Case) ourDestinations(cl Claim, v6 bool) []netip.AddrPort {
	fit := c.fit(cl, v6)
	if !cl.local() {
		return addrsOf(draw.Chosen(fit, c.here()))
	}
	local := draw.Usable(draw.Local(fit))
	if len(local) > 0 || cl.Field == ClusterIP {
		return addrsOf(local)
	}
	return addrsOf(draw.Chosen(fit, c.here()))
}

// theirDestinations returns the destinations that kube-proxy creates. kube-proxy does not exclude endpoints that the
// kernel rejects. With policy Local and no local endpoint, it uses the endpoints for policy Cluster if any address of
// the port needs them.
func (c *Case) theirDestinations(cl Claim, v6 bool) []netip.AddrPort {
	all := c.targets(cl, v6)
	chosen := draw.Chosen(all, c.here())
	if cl.local() {
		if local := draw.Usable(draw.Local(all)); len(local) > 0 {
			chosen = local
		} else if cl.Field == ClusterIP && !c.reachableFromOutside(cl, v6) {
			chosen = nil
		}
	}
	return addrsOf(draw.Fit(chosen))
}

// asDue reports whether both virtual servers have the expected destinations.
func (c *Case) asDue(i Item) bool {
	cl, _ := c.sole(i.Key)
	return i.KubeProxy.leadsTo(c.theirDestinations(cl, i.v6())) && i.Ours.leadsTo(c.ourDestinations(cl, i.v6()))
}

// served reports whether kube-ipvs must connect the client to an endpoint.
func (c *Case) served(cl Claim, client string, v6 bool) bool {
	fit := c.fit(cl, v6)
	switch {
	case len(draw.Usable(fit)) == 0, cl.Field == Balancer && !c.allowed(cl, client, v6):
		return false
	case !cl.local(), len(draw.Usable(draw.Local(fit))) > 0:
		return true
	}
	return cl.Field != ClusterIP && !c.outside(client)
}

// allowed reports whether a load balancer's source ranges contain the client.
func (c *Case) allowed(cl Claim, client string, v6 bool) bool {
	var ranges []netip.Prefix
	for _, text := range cl.Service.Object.Spec.LoadBalancerSourceRanges {
		if r := netip.MustParsePrefix(strings.TrimSpace(text)); r.Addr().Is6() == v6 {
			ranges = append(ranges, r)
		}
	}
	if len(ranges) == 0 {
		return true
	}
	addrs := c.World.Client(client).Addrs
	return slices.ContainsFunc(ranges, func(r netip.Prefix) bool {
		return r.Bits() == 0 || slices.ContainsFunc(addrs, r.Contains)
	})
}

func (c *Case) here() draw.Node { return c.Set.Nodes[0] }

func (c *Case) pod(client string) bool { return c.World.Client(client).Place == draw.InPod }

func (c *Case) outside(client string) bool { return c.World.Client(client).Place == draw.Outside }

// masqueraded reports whether the endpoint must see the node's address instead of the client's.
func (c *Case) masqueraded(cl Claim, client string, v6 bool) bool {
	switch {
	case client == Host, c.mayReachItself(cl, client, v6):
		return true
	case cl.Field == ClusterIP:
		return !c.pod(client)
	}
	return !cl.local()
}

func (c *Case) mayReachItself(cl Claim, client string, v6 bool) bool {
	addrs := c.World.Client(client).Addrs
	return c.pod(client) && slices.ContainsFunc(c.targets(cl, v6), func(t draw.Target) bool { return slices.Contains(addrs, t.Addr.Addr()) })
}

func (c *Case) withoutEndpoints(i Item) bool {
	cl, sole := c.sole(i.Key)
	return sole && len(draw.Usable(c.fit(cl, i.v6()))) == 0
}

// noneLocal reports whether all usable endpoints are on other nodes.
func (c *Case) noneLocal(cl Claim, v6 bool) bool {
	all := c.fit(cl, v6)
	return len(draw.Usable(all)) > 0 && len(draw.Usable(draw.Local(all))) == 0
}

// fit returns the endpoints that kube-ipvs chooses from.
func (c *Case) fit(cl Claim, v6 bool) []draw.Target {
	return slices.DeleteFunc(draw.Fit(c.targets(cl, v6)), func(t draw.Target) bool { return c.bound(t.Addr.Addr()) })
}

// bound reports whether kube-ipvs must bind an address to kube-ipvs0.
func (c *Case) bound(a netip.Addr) bool {
	var claims []Claim
	for _, key := range c.keysAt(a) {
		if !c.needed(key) {
			claims = append(claims, c.claims[key]...)
		}
	}
	claims = slices.DeleteFunc(claims, func(cl Claim) bool { return cl.Field == NodePort })
	return len(claims) > 0 && !slices.Contains(c.World.Interfaces, a) && (!c.onOtherNode(a) || c.kept[a] || hasField(claims, ClusterIP))
}

// unfitCounts reports whether a policy chooses an endpoint that the kernel rejects.
func (c *Case) unfitCounts(cl Claim, v6 bool) bool {
	all := c.targets(cl, v6)
	return slices.ContainsFunc(append(draw.Usable(all), draw.Usable(draw.Local(all))...), draw.Target.Unfit)
}

// reachableFromOutside reports whether the claim's port also has an address other than the ClusterIP.
func (c *Case) reachableFromOutside(cl Claim, v6 bool) bool {
	for key, claims := range c.claims {
		for _, o := range claims {
			if o.Service.ID() == cl.Service.ID() && o.Field != ClusterIP && o.Field != NodePort && key.Addr.Addr().Is6() == v6 {
				return true
			}
		}
	}
	return cl.Port.NodePort != 0
}

func (cl Claim) local() bool {
	spec := cl.Service.Object.Spec
	if cl.Field == ClusterIP {
		return spec.InternalTrafficPolicy != nil && *spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal
	}
	return spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

func (c *Case) targets(cl Claim, v6 bool) []draw.Target {
	return cl.Service.Targets(c.World.Here().Name, cl.Port, v6)
}

func addrsOf(targets []draw.Target) []netip.AddrPort {
	addrs := []netip.AddrPort{}
	for _, t := range targets {
		addrs = append(addrs, t.Addr)
	}
	slices.SortFunc(addrs, netip.AddrPort.Compare)
	return addrs
}
