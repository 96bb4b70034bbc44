package draw

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Namespaces are the namespaces of the Services.
var Namespaces = []string{"default", "team-b"}

// otherProxy labels Services that another program serves.
const otherProxy = "service.kubernetes.io/service-proxy-name"

func (d *Drawer) service() Service {
	o := &corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}}
	o.Namespace = one(d, Namespaces...)
	if d.chance(5) {
		o.Spec.Type = corev1.ServiceTypeExternalName
		o.Spec.ExternalName = "www.example.com"
		return Service{Object: o}
	}
	d.families(o)
	if d.chance(6) {
		o.Spec.Type = corev1.ServiceTypeClusterIP
		o.Spec.ClusterIPs = []string{corev1.ClusterIPNone}
	} else {
		d.clusterIPs(o)
		o.Spec.Type = one(d, corev1.ServiceTypeClusterIP, corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort,
			corev1.ServiceTypeLoadBalancer)
	}
	o.Spec.ClusterIP = o.Spec.ClusterIPs[0]
	d.character(o)
	return Service{Object: o, Slices: d.slices(o)}
}

func (d *Drawer) families(o *corev1.Service) {
	o.Spec.IPFamilies = one(d,
		[]corev1.IPFamily{corev1.IPv4Protocol},
		[]corev1.IPFamily{corev1.IPv6Protocol},
		[]corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
		[]corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
		[]corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol},
	)
	policy := corev1.IPFamilyPolicySingleStack
	if len(o.Spec.IPFamilies) == 2 {
		policy = corev1.IPFamilyPolicyRequireDualStack
	}
	o.Spec.IPFamilyPolicy = &policy
}

// clusterIPs allocates the next free addresses, and occasionally a node's address.
func (d *Drawer) clusterIPs(o *corev1.Service) {
	n := d.clusterIP
	if d.chance(4) {
		n = high + one(d, ownHost, otherHost)
	}
	for _, f := range o.Spec.IPFamilies {
		ip := ClusterRanges.addr(f == corev1.IPv6Protocol, n).String()
		if d.taken[ip] {
			ip = ClusterRanges.addr(f == corev1.IPv6Protocol, d.clusterIP).String()
		}
		o.Spec.ClusterIPs = append(o.Spec.ClusterIPs, ip)
	}
}

// character draws the fields that can change during a Service's lifetime.
func (d *Drawer) character(o *corev1.Service) {
	o.Labels = nil
	if d.chance(4) {
		o.Labels = map[string]string{otherProxy: "another-proxy"}
	}
	o.Spec.Ports = d.ports()
	o.Spec.SessionAffinity, o.Spec.SessionAffinityConfig = corev1.ServiceAffinityNone, nil
	if d.chance(20) {
		seconds := one(d, 1, 60, 10800, 86400, 1+d.rng.Int32N(86400))
		o.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		o.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
	}
	if o.Spec.ClusterIP == corev1.ClusterIPNone {
		return
	}
	d.external(o)
	internal := corev1.ServiceInternalTrafficPolicyCluster
	if d.chance(20) {
		internal = corev1.ServiceInternalTrafficPolicyLocal
	}
	o.Spec.InternalTrafficPolicy = &internal
	d.balancer(o)
	d.externalPolicy(o)
	d.nodePorts(o)
}

func (d *Drawer) ports() []corev1.ServicePort {
	var ports []corev1.ServicePort
	for i := range one(d, 1, 1, 1, 2, 3) {
		p := corev1.ServicePort{
			Name:     fmt.Sprintf("p%d", i),
			Protocol: one(d, corev1.ProtocolTCP, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP),
			Port:     one(d, 80, 443, 53, 8080, 1+d.rng.Int32N(29999)),
		}
		if d.chance(8) {
			p.Port = 22 // the node needs this port on its own addresses
		}
		if len(d.known) > 0 && d.chance(15) {
			like := one(d, d.known...)
			p.Port, p.Protocol = like.NodePort, like.Protocol
		}
		if i == 1 && d.chance(40) {
			p.Port = ports[0].Port // one number for two protocols, as for DNS
		}
		same := func(q corev1.ServicePort) bool { return q.Port == p.Port && q.Protocol == p.Protocol }
		if !slices.ContainsFunc(ports, same) {
			p.TargetPort = intstr.FromInt32(p.Port) // the slices contain the real target port
			ports = append(ports, p)
		}
	}
	return ports
}

// external draws addresses that are routed to the nodes. Some of them are the nodes' own.
func (d *Drawer) external(o *corev1.Service) {
	o.Spec.ExternalIPs = nil
	if !d.chance(25) {
		return
	}
	for range one(d, 1, 1, 2) {
		v6 := d.familyOf(o)
		var ip string
		switch d.rng.IntN(10) {
		case 0:
			ip = ofFamily(d.world.Here().Internal, v6)
		case 1:
			ip = ofFamily(d.world.OtherNode().Addresses(), v6)
		case 2:
			ip = BalancerRanges.addr(v6, contestedHost).String()
		case 3:
			ip = BalancerRanges.addr(v6, ownPublicHost).String()
		default:
			ip = ExternalRanges.addr(v6, 1+d.rng.IntN(240)).String()
		}
		if !slices.Contains(o.Spec.ExternalIPs, ip) {
			o.Spec.ExternalIPs = append(o.Spec.ExternalIPs, ip)
		}
	}
	d.contest(o, o.Spec.ExternalIPs)
}

func (d *Drawer) familyOf(o *corev1.Service) (v6 bool) {
	if d.chance(8) {
		return d.chance(50)
	}
	return one(d, o.Spec.IPFamilies...) == corev1.IPv6Protocol
}

// contest adds the contested port if the Service claims the contested address.
func (d *Drawer) contest(o *corev1.Service, ips []string) {
	for _, v6 := range []bool{false, true} {
		if slices.Contains(ips, BalancerRanges.addr(v6, contestedHost).String()) {
			o.Spec.Ports[0].Port, o.Spec.Ports[0].Protocol = 80, corev1.ProtocolTCP
			o.Spec.Ports = slices.DeleteFunc(o.Spec.Ports, func(p corev1.ServicePort) bool {
				return p.Name != o.Spec.Ports[0].Name && p.Port == 80 && p.Protocol == corev1.ProtocolTCP
			})
		}
	}
}

// balancer draws the fields of load balancers, and the status that their controller would write.
func (d *Drawer) balancer(o *corev1.Service) {
	o.Spec.AllocateLoadBalancerNodePorts, o.Spec.LoadBalancerSourceRanges = nil, nil
	o.Status.LoadBalancer.Ingress = nil
	if o.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return
	}
	allocate := !d.chance(20)
	o.Spec.AllocateLoadBalancerNodePorts = &allocate
	for range one(d, 0, 1, 1, 1, 2, 3) {
		o.Status.LoadBalancer.Ingress = append(o.Status.LoadBalancer.Ingress, d.ingress(o))
	}
	var ips []string
	for _, in := range o.Status.LoadBalancer.Ingress {
		ips = append(ips, in.IP)
	}
	d.contest(o, ips)
	if d.chance(35) {
		o.Spec.LoadBalancerSourceRanges = d.sourceRanges()
	}
}

func (d *Drawer) ingress(o *corev1.Service) corev1.LoadBalancerIngress {
	v6 := d.familyOf(o)
	switch d.rng.IntN(12) {
	case 0:
		return corev1.LoadBalancerIngress{Hostname: "lb.example.com"}
	case 1:
		mode := corev1.LoadBalancerIPModeProxy
		return corev1.LoadBalancerIngress{IP: BalancerRanges.addr(v6, 1+d.rng.IntN(190)).String(), IPMode: &mode}
	}
	mode := corev1.LoadBalancerIPModeVIP
	in := corev1.LoadBalancerIngress{IPMode: &mode}
	switch d.rng.IntN(12) {
	case 0:
		in.IP = ofFamily(d.world.OtherNode().Addresses(), v6)
	case 1:
		in.IP = BalancerRanges.addr(v6, contestedHost).String()
	default:
		in.IP = BalancerRanges.addr(v6, 1+d.rng.IntN(190)).String()
	}
	return in
}

// sourceRanges draws ranges that include or exclude clients.
func (d *Drawer) sourceRanges() []string {
	all := []string{"198.51.100.0/24", "2001:db8:51::/64", "10.244.0.0/16", "fd00:10:244::/48", "192.168.50.0/24", "fd00:50::/64",
		"172.16.0.0/12", "2001:db8:dead::/48", "0.0.0.0/0", "::/0", "128.0.0.0/1"}
	for _, c := range d.world.Clients {
		for _, a := range c.Addrs {
			all = append(all, fmt.Sprintf("%s/%d", a, a.BitLen()))
		}
	}
	var ranges []string
	for range 1 + d.rng.IntN(4) {
		if r := one(d, all...); !slices.Contains(ranges, r) {
			ranges = append(ranges, r)
		}
	}
	return ranges
}

func (d *Drawer) externalPolicy(o *corev1.Service) {
	o.Spec.ExternalTrafficPolicy = ""
	if o.Spec.Type == corev1.ServiceTypeClusterIP && len(o.Spec.ExternalIPs) == 0 {
		return
	}
	o.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
	if d.chance(35) {
		o.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	}
}

func (d *Drawer) nodePorts(o *corev1.Service) {
	next := d.nodePort
	balancer := o.Spec.Type == corev1.ServiceTypeLoadBalancer
	if o.Spec.Type == corev1.ServiceTypeNodePort || balancer && *o.Spec.AllocateLoadBalancerNodePorts {
		for i := range o.Spec.Ports {
			o.Spec.Ports[i].NodePort = next
			// The API server lets two protocols share a node port only if they also share the port.
			if i+1 == len(o.Spec.Ports) || o.Spec.Ports[i].Port != o.Spec.Ports[i+1].Port {
				next++
			}
		}
	}
	local := o.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	switch {
	case !balancer || !local:
		o.Spec.HealthCheckNodePort = 0
	case o.Spec.HealthCheckNodePort == 0: // once assigned, it must not change
		o.Spec.HealthCheckNodePort = next
	}
}
