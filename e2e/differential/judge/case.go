package judge

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-ipvs/kube-ipvs/e2e/differential/draw"
)

// Case is a set of objects and the claims of its Services on addresses and ports.
type Case struct {
	World draw.World
	Set   draw.Set
	// Created is the creation time of each Service.
	Created map[string]time.Time
	claims  map[Key][]Claim
	// kept contains addresses that were added to another node's Node object while a Service was served there. Both
	// programs continue to serve them.
	kept map[netip.Addr]bool
	// nodePorts contains the node ports with external policy Cluster.
	nodePorts map[portNumber]bool
}

// Claim is a Service port's claim on an address and port.
type Claim struct {
	Service draw.Service
	Port    corev1.ServicePort
	Field   Field
}

// Field names the Service field that contains the address.
type Field string

// The fields with addresses.
const (
	ClusterIP  Field = "ClusterIP"
	Balancer   Field = "load balancer"
	ExternalIP Field = "external IP"
	NodePort   Field = "node port"
)

type portNumber struct {
	protocol corev1.Protocol
	number   int32
	v6       bool
}

// NewCase collects the claims of a set.
func NewCase(world draw.World, set draw.Set, created map[string]time.Time) *Case {
	c := &Case{World: world, Set: set, Created: created, claims: map[Key][]Claim{}, kept: map[netip.Addr]bool{}, nodePorts: map[portNumber]bool{}}
	for _, svc := range set.Services {
		if !svc.Served() {
			continue
		}
		for _, port := range svc.Object.Spec.Ports {
			c.claim(svc, port)
		}
	}
	return c
}

func (c *Case) claim(svc draw.Service, port corev1.ServicePort) {
	spec := svc.Object.Spec
	add := func(field Field, addr netip.Addr, number int32) {
		if !hasFamily(spec, addr) {
			return
		}
		key := Key{port.Protocol, netip.AddrPortFrom(addr, uint16(number))}
		c.claims[key] = append(c.claims[key], Claim{svc, port, field})
	}
	for _, ip := range spec.ClusterIPs {
		add(ClusterIP, netip.MustParseAddr(ip), port.Port)
	}
	for _, in := range svc.Object.Status.LoadBalancer.Ingress {
		if in.IP != "" && (in.IPMode == nil || *in.IPMode == corev1.LoadBalancerIPModeVIP) {
			add(Balancer, netip.MustParseAddr(in.IP), port.Port)
		}
	}
	for _, ip := range spec.ExternalIPs {
		add(ExternalIP, netip.MustParseAddr(ip), port.Port)
	}
	if port.NodePort == 0 {
		return
	}
	for _, addr := range c.Set.NodePortAddresses(c.World) {
		add(NodePort, addr, port.NodePort)
		if hasFamily(spec, addr) && spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyCluster {
			c.nodePorts[portNumber{port.Protocol, port.NodePort, addr.Is6()}] = true
		}
	}
}

// hasFamily reports whether a Service has a ClusterIP of the address's family. A Service is served only in the
// families of its ClusterIPs.
func hasFamily(spec corev1.ServiceSpec, a netip.Addr) bool {
	return slices.ContainsFunc(spec.ClusterIPs, func(ip string) bool { return netip.MustParseAddr(ip).Is6() == a.Is6() })
}

// sole returns the claim on a key if only one Service claims it. If two fields of the Service contain the address,
// the stricter one applies.
func (c *Case) sole(key Key) (Claim, bool) {
	all := c.claims[key]
	if len(all) == 0 || c.contested(key) {
		return Claim{}, false
	}
	return all[0], true
}

func (c *Case) contested(key Key) bool {
	all := c.claims[key]
	return slices.ContainsFunc(all, func(o Claim) bool { return o.Service.ID() != all[0].Service.ID() })
}

// precedence lists the fields in descending order of precedence. Addresses that the cluster allocates come before
// addresses that users write.
var precedence = []Field{ClusterIP, NodePort, Balancer, ExternalIP}

// servable returns the claims on a key that kube-ipvs can serve. It leaves out ClusterIPs that are addresses of this
// node's interfaces.
func (c *Case) servable(key Key) []Claim {
	return slices.DeleteFunc(slices.Clone(c.claims[key]), func(cl Claim) bool {
		return cl.Field == ClusterIP && slices.Contains(c.World.Interfaces, key.Addr.Addr())
	})
}

// winner returns the claim whose field has the highest precedence, then the oldest, then the first by name. At least
// one of the claims must be servable.
func (c *Case) winner(key Key) Claim {
	return slices.MinFunc(c.servable(key), func(a, b Claim) int {
		x, y := a.Service.ID(), b.Service.ID()
		return cmp.Or(cmp.Compare(slices.Index(precedence, a.Field), slices.Index(precedence, b.Field)),
			c.Created[x].Compare(c.Created[y]), strings.Compare(x, y))
	})
}

// Suspects returns the Services that claim an address.
func (c *Case) Suspects(addr netip.Addr) map[string]bool {
	ids := map[string]bool{}
	for key, all := range c.claims {
		for _, claim := range all {
			if key.Addr.Addr() == addr {
				ids[claim.Service.ID()] = true
			}
		}
	}
	return ids
}

// neededPorts are the TCP ports that a node needs on its own addresses (docs/services.md).
var neededPorts = []uint16{22, 2379, 2380, 6443, 10249, 10250, 10256, 10257, 10259}

// needed reports whether the node needs the port on its own address.
func (c *Case) needed(key Key) bool {
	addr := key.Addr.Addr()
	if key.Protocol != corev1.ProtocolTCP || !slices.Contains(neededPorts, key.Addr.Port()) || len(c.claims[key]) == 0 {
		return false
	}
	ofNode := slices.Contains(c.here().Addresses(), addr)
	return !slices.ContainsFunc(c.claims[key], func(cl Claim) bool {
		return cl.Field == ClusterIP || !ofNode && (cl.Field != ExternalIP || !slices.Contains(c.World.Interfaces, addr))
	})
}

func (c *Case) onOtherNode(a netip.Addr) bool {
	return slices.ContainsFunc(c.Set.Nodes[1:], func(n draw.Node) bool { return slices.Contains(n.Addresses(), a) })
}

func (c *Case) addressClaims(a netip.Addr) []Claim {
	var all []Claim
	for key, claims := range c.claims {
		if key.Addr.Addr() == a {
			all = append(all, claims...)
		}
	}
	return all
}

func (c *Case) keysAt(a netip.Addr) []Key {
	return slices.DeleteFunc(slices.Collect(maps.Keys(c.claims)), func(k Key) bool { return k.Addr.Addr() != a })
}

func (c *Case) hasNodePort(key Key) bool {
	for other, claims := range c.claims {
		if other.Protocol == key.Protocol && other.Addr.Port() == key.Addr.Port() && hasField(claims, NodePort) {
			return true
		}
	}
	return false
}

func hasField(claims []Claim, f Field) bool {
	return slices.ContainsFunc(claims, func(cl Claim) bool { return cl.Field == f })
}
