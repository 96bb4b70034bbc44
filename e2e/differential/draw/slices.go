package draw

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func (d *Drawer) slices(o *corev1.Service) []*discovery.EndpointSlice {
	if d.chance(6) {
		return nil
	}
	real := d.chance(65)
	members := d.members(o, real)
	hints := one(d, "", "", "", "zones", "nodes", "some")
	var all []*discovery.EndpointSlice
	for _, family := range o.Spec.IPFamilies {
		v6 := family == corev1.IPv6Protocol
		parts := one(d, 1, 1, 2, 3)
		made := make([]*discovery.EndpointSlice, parts)
		for i := range made {
			made[i] = d.emptySlice(o, family, real)
		}
		for i, m := range members {
			e := m.endpoint(v6)
			d.hint(&e, hints, i)
			into := made[d.rng.IntN(parts)]
			into.Endpoints = append(into.Endpoints, e)
			if again := made[d.rng.IntN(parts)]; again != into && d.chance(40) {
				d.duplicate(e, into, again)
			}
		}
		all = append(all, made...)
	}
	if o.Spec.ClusterIP == corev1.ClusterIPNone {
		for _, s := range all {
			s.Labels[corev1.IsHeadlessService] = ""
		}
	}
	return all
}

// member is an endpoint with an address in each family.
type member struct {
	v4, v6     netip.Addr
	node       string
	conditions discovery.EndpointConditions
}

// Like a multicast address, broadcast does not belong to a single host.
var broadcast = netip.MustParseAddr("255.255.255.255")

// members draws endpoints. If real is true, they are pods that answer.
func (d *Drawer) members(o *corev1.Service, real bool) []member {
	count := one(d, 0, 1, 1, 2, 2, 3, 4)
	var all []member
	for _, i := range d.rng.Perm(len(d.world.Pods))[:min(count, len(d.world.Pods))] {
		m := member{conditions: d.conditions()}
		if real {
			pod := d.world.Pods[i]
			m.v4, m.v6, m.node = pod.V4, pod.V6, pod.Node
		} else {
			n := 1 + d.rng.IntN(200)
			m.v4, m.v6 = nowhere.addr(false, n), nowhere.addr(true, n)
			m.node = one(d, d.world.Nodes...).Name
		}
		switch {
		case real:
		case d.chance(10):
			m.node = ""
		case d.chance(8):
			m.v4, m.v6 = one(d, broadcast, netip.MustParseAddr("239.1.1.1")), netip.MustParseAddr("ff0e::7")
		case d.chance(8): // a ClusterIP of this or another Service
			m.v4, m.v6 = one(d, BalancerRanges, ExternalRanges).addr(false, contestedHost), BalancerRanges.addr(true, contestedHost)
			if len(o.Spec.ClusterIPs) == 2 && d.chance(50) {
				m.v4, m.v6 = bothFamilies(o)
			}
		case d.chance(8): // a pod on the host's network
			here := d.world.Here()
			m.v4, m.v6, m.node = here.Internal[0], here.Internal[1], here.Name
		}
		if !slices.ContainsFunc(all, func(o member) bool { return o.v4 == m.v4 || o.v6 == m.v6 }) { // only duplicate adds a second entry for an address
			all = append(all, m)
		}
	}
	if len(all) > 0 && d.chance(12) {
		for i := range all { // all pods terminate
			all[i].conditions = conditions(false, true, true)
		}
	}
	return all
}

func (d *Drawer) conditions() discovery.EndpointConditions {
	switch n := d.rng.IntN(100); {
	case n < 55:
		return conditions(true, true, false)
	case n < 62:
		return discovery.EndpointConditions{} // unset means ready
	case n < 75:
		return conditions(false, false, false)
	case n < 88:
		return conditions(false, true, true)
	case n < 94:
		return conditions(false, false, true)
	case n < 97:
		e := conditions(false, true, one(d, false, true))
		e.Serving = nil // unset means serving
		return e
	}
	return conditions(true, true, true) // as with publishNotReadyAddresses
}

func conditions(ready, serving, terminating bool) discovery.EndpointConditions {
	return discovery.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating}
}

func (m member) endpoint(v6 bool) discovery.Endpoint {
	addr := m.v4
	if v6 {
		addr = m.v6
	}
	e := discovery.Endpoint{Addresses: []string{addr.String()}, Conditions: m.conditions}
	if m.node != "" {
		e.NodeName = &m.node
	}
	return e
}

func (d *Drawer) hint(e *discovery.Endpoint, hints string, i int) {
	zones := []discovery.ForZone{{Name: one(d, "zone-a", "zone-b")}}
	switch {
	case hints == "zones", hints == "some" && i > 0:
		e.Hints = &discovery.EndpointHints{ForZones: zones}
	case hints == "nodes":
		node := one(d, d.world.Nodes...).Name
		e.Hints = &discovery.EndpointHints{ForZones: zones, ForNodes: []discovery.ForNode{{Name: node}}}
	}
}

// duplicate adds an endpoint to a second slice, as happens when endpoints move between slices, or adds a terminating
// pod with the same address. Kubernetes does not specify which of two terminating endpoints takes precedence, so the
// two are always equal.
func (d *Drawer) duplicate(e discovery.Endpoint, from, to *discovery.EndpointSlice) {
	if stays := e.Conditions.Terminating == nil || !*e.Conditions.Terminating; stays && d.chance(30) {
		e.Conditions = conditions(false, true, true)
	}
	to.Ports = slices.Clone(from.Ports)
	to.Endpoints = append(to.Endpoints, e)
}

func (d *Drawer) emptySlice(o *corev1.Service, family corev1.IPFamily, real bool) *discovery.EndpointSlice {
	s := &discovery.EndpointSlice{TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}}
	s.Labels = map[string]string{}
	s.AddressType = discovery.AddressType(family)
	s.Endpoints = []discovery.Endpoint{}
	if d.chance(4) {
		return s // a slice without ports serves none
	}
	for _, p := range o.Spec.Ports {
		if d.chance(4) {
			continue
		}
		name, protocol, target := p.Name, p.Protocol, one(d, d.world.Ports...)
		if !real {
			target = 1 + d.rng.Int32N(65535)
		}
		s.Ports = append(s.Ports, discovery.EndpointPort{Name: &name, Protocol: &protocol, Port: &target})
	}
	return s
}

// strays draws slices without a Service. Such slices exist briefly after their Service is deleted.
func (d *Drawer) strays() []*discovery.EndpointSlice {
	o := &corev1.Service{}
	o.Namespace = one(d, Namespaces...)
	o.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	for len(o.Spec.Ports) == 0 {
		o.Spec.Ports = d.ports()
	}
	svc := Service{Object: o}
	for len(svc.Slices) == 0 {
		svc.Slices = d.slices(o)
	}
	d.drawn++
	rename(svc, fmt.Sprintf("%s-%03d-missing", d.label, d.drawn))
	return svc.Slices
}

func bothFamilies(o *corev1.Service) (v4, v6 netip.Addr) {
	v4, v6 = netip.MustParseAddr(o.Spec.ClusterIPs[0]), netip.MustParseAddr(o.Spec.ClusterIPs[1])
	if v4.Is6() {
		v4, v6 = v6, v4
	}
	return v4, v6
}

func ofFamily(addrs []netip.Addr, v6 bool) string {
	i := slices.IndexFunc(addrs, func(a netip.Addr) bool { return a.Is6() == v6 })
	return addrs[i].String()
}
