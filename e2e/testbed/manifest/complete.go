package manifest

import (
	"cmp"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

var families = []cluster.Family{cluster.V4, cluster.V6}

// complete adds all fields that the API server and a cloud controller would add.
func (s Service) complete() corev1.Service {
	o := *s.user.DeepCopy()
	o.APIVersion, o.Kind = "v1", "Service"
	spec := &o.Spec
	spec.Type = cmp.Or(spec.Type, corev1.ServiceTypeClusterIP)
	if spec.Type == corev1.ServiceTypeExternalName {
		return o
	}
	s.allocateClusterIPs(spec)
	if len(spec.Ports) == 0 {
		convert(documents(s.maker.Ports)[0], spec)
	}
	balanced := spec.Type == corev1.ServiceTypeLoadBalancer
	nodePorts := spec.Type == corev1.ServiceTypeNodePort || balanced && ptr.Deref(spec.AllocateLoadBalancerNodePorts, true)
	for i := range spec.Ports {
		p := &spec.Ports[i]
		p.Protocol = cmp.Or(p.Protocol, corev1.ProtocolTCP)
		if nodePorts && p.NodePort == 0 {
			p.NodePort = int32(30000 + s.number)
		}
	}
	spec.ExternalIPs = s.maker.addresses(spec.ExternalIPs)
	spec.LoadBalancerSourceRanges = s.maker.ranges(spec.LoadBalancerSourceRanges)
	o.Status.LoadBalancer.Ingress = nil
	if balanced {
		o.Status.LoadBalancer.Ingress = s.ingress()
	}
	return o
}

func (s Service) allocateClusterIPs(spec *corev1.ServiceSpec) {
	if len(spec.ClusterIPs) == 0 {
		if len(spec.IPFamilies) == 0 {
			spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
		}
		for _, f := range spec.IPFamilies {
			spec.ClusterIPs = append(spec.ClusterIPs, map[corev1.IPFamily]string{
				corev1.IPv4Protocol: fmt.Sprintf("10.96.1.%d", s.number),
				corev1.IPv6Protocol: fmt.Sprintf("fd00:10:96::1%02x", s.number),
			}[f])
		}
	}
	spec.ClusterIPs = s.maker.addresses(spec.ClusterIPs)
	spec.ClusterIP, spec.IPFamilies = spec.ClusterIPs[0], nil
	for _, ip := range spec.ClusterIPs {
		spec.IPFamilies = append(spec.IPFamilies, corev1.IPFamily(FamilyOf(ip).String()))
	}
	spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicySingleStack)
	if len(spec.ClusterIPs) == 2 {
		spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicyRequireDualStack)
	}
}

// ingress returns unique addresses if the Service's status has none.
func (s Service) ingress() (all []corev1.LoadBalancerIngress) {
	given := s.user.Status.LoadBalancer.Ingress
	if len(given) == 0 {
		return []corev1.LoadBalancerIngress{{IP: fmt.Sprintf("203.0.113.%d", s.number)}, {IP: fmt.Sprintf("2001:db8:cb::%x", s.number)}}
	}
	for _, ingress := range given {
		if ingress.IP == "" {
			all = append(all, ingress)
			continue
		}
		for _, ip := range s.maker.addresses([]string{ingress.IP}) {
			one := ingress
			one.IP = ip
			all = append(all, one)
		}
	}
	return all
}

// Without a cluster, every name must be an address.
func (m *Maker) host(name string) *cluster.Host {
	if m.Cluster == nil {
		return nil
	}
	return m.Cluster.Host(name)
}

func (m *Maker) addresses(list []string) (all []string) {
	for _, name := range list {
		if h := m.host(name); h != nil {
			all = append(all, h.V4.String(), h.V6.String())
		} else {
			all = append(all, netip.MustParseAddr(name).String())
		}
	}
	return all
}

func (m *Maker) ranges(list []string) (all []string) {
	for _, name := range list {
		if h := m.host(name); h != nil {
			all = append(all, h.V4.String()+"/32", h.V6.String()+"/128")
		} else {
			all = append(all, netip.MustParsePrefix(name).String())
		}
	}
	return all
}

// resolve fills in the endpoints of one family's slice.
func (m *Maker) resolve(slice discoveryv1.EndpointSlice, f cluster.Family) discoveryv1.EndpointSlice {
	endpoints := []discoveryv1.Endpoint{}
	for _, e := range slice.Endpoints {
		if h := m.host(e.Addresses[0]); h != nil {
			e.Addresses, e.NodeName = []string{h.Addr(f).String()}, ptr.To(m.nodeOf(h))
		} else if FamilyOf(e.Addresses[0]) != f {
			continue // the address belongs to the other family's slice
		}
		ready := ptr.Deref(e.Conditions.Ready, true)
		e.Conditions.Ready = &ready
		e.Conditions.Serving = ptr.To(ptr.Deref(e.Conditions.Serving, ready))
		e.Conditions.Terminating = ptr.To(ptr.Deref(e.Conditions.Terminating, false))
		endpoints = append(endpoints, e)
	}
	slice.Endpoints = endpoints
	return slice
}

func (m *Maker) nodeOf(h *cluster.Host) string {
	for _, n := range m.Cluster.Nodes {
		if n.Host == h || n.PodCIDR.V4.Contains(h.V4) {
			return n.Name
		}
	}
	panic(h.Name + " is on no node")
}

// slice completes an EndpointSlice as the slice controller would.
func (s Service) slice(f cluster.Family, suffix string) discoveryv1.EndpointSlice {
	given := s.slices[f]
	slice := given.DeepCopy()
	slice.APIVersion, slice.Kind = "discovery.k8s.io/v1", "EndpointSlice"
	slice.Name = fmt.Sprintf("%s%s-v%d", s.Name, suffix, f)
	slice.AddressType = discoveryv1.AddressType(f.String())
	if slice.Labels == nil {
		slice.Labels = map[string]string{}
	}
	slice.Labels[discoveryv1.LabelServiceName] = s.Name
	if slice.Ports == nil {
		for _, p := range s.Spec.Ports {
			slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{
				Name: ptr.To(p.Name), Protocol: ptr.To(p.Protocol), Port: ptr.To(cmp.Or(p.TargetPort.IntVal, p.Port)),
			})
		}
	}
	return *slice
}

// FamilyOf returns the family of an address.
func FamilyOf(ip string) cluster.Family {
	if netip.MustParseAddr(ip).Is4() {
		return cluster.V4
	}
	return cluster.V6
}
