package watch

import (
	"testing"

	v1 "k8s.io/api/core/v1"
)

func everythingExternal(s *v1.Service) {
	balanced(s)
	s.Spec.ExternalIPs = []string{"198.51.100.7", "2001:db8::7"}
	s.Spec.LoadBalancerSourceRanges = []string{"203.0.113.0/24", "2001:db8:1::/48"}
	s.Spec.ExternalTrafficPolicy, s.Spec.InternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal, ptr(v1.ServiceInternalTrafficPolicyLocal)
	s.Spec.HealthCheckNodePort = 32000
	s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, v1.LoadBalancerIngress{IP: "2001:db8::9", IPMode: ptr(v1.LoadBalancerIPModeVIP)})
}

// everythingWrong sets an invalid value in each field for external clients.
func everythingWrong(s *v1.Service) {
	balanced(s)
	s.Spec.ExternalIPs = []string{"", "x", "127.0.0.1", "224.0.0.1", "169.254.1.1", "0.0.0.0", "255.255.255.255"}
	s.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/33", ""}
	s.Spec.ExternalTrafficPolicy, s.Spec.InternalTrafficPolicy = "local", ptr(v1.ServiceInternalTrafficPolicy("Node"))
	s.Spec.HealthCheckNodePort, s.Spec.Ports[0].NodePort = 70000, -1
	s.Status.LoadBalancer.Ingress[0].IPMode = ptr(v1.LoadBalancerIPMode("DSR"))
}

// balanced adds a load balancer that forwards packets with its own address as the destination.
func balanced(s *v1.Service) {
	s.Spec.Type, s.Spec.Ports[0].NodePort = v1.ServiceTypeLoadBalancer, 30080
	s.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: "203.0.113.9"}}
}

type serviceCase struct {
	name     string
	change   func(*v1.Service)
	want     string
	problems []string
}

func runServiceCases(t *testing.T, cases []serviceCase) {
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) { checkConversion(t, tt.change, tt.want, tt.problems) })
	}
}

func TestConvertExternal(t *testing.T) {
	runServiceCases(t, []serviceCase{
		{
			name: "everything", change: everythingExternal,
			want: "default/web [10.96.0.10] http=80/tcp@30080 external=[198.51.100.7 2001:db8::7] balancer=[203.0.113.9 2001:db8::9] " +
				"from=[203.0.113.0/24 2001:db8:1::/48] internal=local external=local health=32000",
		},
		{
			name: "everything wrong", change: everythingWrong,
			want: "default/web [10.96.0.10] http=80/tcp",
			problems: []string{
				`Service default/web: spec.externalTrafficPolicy "local": must be Cluster or Local. The agent uses Cluster`,
				`Service default/web: spec.externalIPs[0]: must be an IP address, such as 10.96.0.10 or fd00::10. The address is not served`,
				`Service default/web: spec.externalIPs[1] "x": must be an IP address, such as 10.96.0.10 or fd00::10. The address is not served`,
				`Service default/web: spec.externalIPs[2] "127.0.0.1": must be an address that clients can reach; this is a loopback address, which every node has. The address is not served`,
				`Service default/web: spec.externalIPs[3] "224.0.0.1": must be an address that clients can reach; this is a multicast address. The address is not served`,
				`Service default/web: spec.externalIPs[4] "169.254.1.1": must be an address that clients can reach; ` +
					`this is a link-local address, which names a different host on every link. The address is not served`,
				`Service default/web: spec.externalIPs[5] "0.0.0.0": must be an address that clients can reach; this is not a host address. The address is not served`,
				`Service default/web: spec.externalIPs[6] "255.255.255.255": must be an address that clients can reach; this is the broadcast address. The address is not served`,
				`Service default/web: spec.internalTrafficPolicy "Node": must be Cluster or Local. The agent uses Cluster`,
				`Service default/web: spec.healthCheckNodePort "70000": requires spec.type LoadBalancer and spec.externalTrafficPolicy Local. The agent does not serve this health check`,
				`Service default/web: spec.ports[0].nodePort "-1": must be between 1 and 65535. The port is not served on node addresses`,
				`Service default/web: status.loadBalancer.ingress[0].ipMode "DSR": must be VIP or Proxy. The agent uses Proxy`,
				`Service default/web: spec.loadBalancerSourceRanges[0] "10.0.0.0/33": must be a CIDR, such as 10.244.1.0/24 or fd00:10:244:1::/64`,
				`Service default/web: spec.loadBalancerSourceRanges[1]: must be a CIDR, such as 10.244.1.0/24 or fd00:10:244:1::/64`,
			},
		},
		{
			name: "duplicate addresses, also in other spellings",
			change: func(s *v1.Service) {
				s.Spec.ExternalIPs = []string{"198.51.100.7", "198.051.100.007", "::ffff:198.51.100.7"}
			},
			want: "default/web [10.96.0.10] http=80/tcp external=[198.51.100.7]",
		},
		{
			name: "explicit and default policies",
			change: func(s *v1.Service) {
				s.Spec.ExternalTrafficPolicy, s.Spec.InternalTrafficPolicy = "Cluster", ptr(v1.ServiceInternalTrafficPolicyCluster)
			},
			want: "default/web [10.96.0.10] http=80/tcp",
		},
	})
}

func TestConvertLoadBalancer(t *testing.T) { runServiceCases(t, loadBalancerCases) }

var loadBalancerCases = []serviceCase{
	{name: "plain", change: balanced, want: "default/web [10.96.0.10] http=80/tcp@30080 balancer=[203.0.113.9]"},
	{
		name: "modes, names, a duplicate and an invalid address",
		change: func(s *v1.Service) {
			balanced(s)
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, v1.LoadBalancerIngress{Hostname: "lb.example"},
				v1.LoadBalancerIngress{IP: "203.0.113.10", IPMode: ptr(v1.LoadBalancerIPModeProxy)},
				v1.LoadBalancerIngress{IP: "203.0.113.9"}, v1.LoadBalancerIngress{IP: "::1"}, v1.LoadBalancerIngress{IP: "203.0.113.11"})
		},
		want: "default/web [10.96.0.10] http=80/tcp@30080 balancer=[203.0.113.9 203.0.113.11]",
		problems: []string{`Service default/web: status.loadBalancer.ingress[4].ip "::1": must be an address that clients can reach; ` +
			`this is a loopback address, which every node has. The address is not served`},
	},
	{
		name: "status left over from another type", want: "default/web [10.96.0.10] http=80/tcp@30080",
		change: func(s *v1.Service) { balanced(s); s.Spec.Type = v1.ServiceTypeNodePort },
	},
	{
		name: "ranges: spaces, host bits, order, duplicates, IPv4-mapped",
		change: func(s *v1.Service) {
			balanced(s)
			s.Spec.LoadBalancerSourceRanges = []string{" 203.0.113.7/24 ", "fd00::/8", "10.0.0.0/8", "203.0.113.0/24", "::ffff:10.0.0.0/104", "0.0.0.0/0"}
		},
		want: "default/web [10.96.0.10] http=80/tcp@30080 balancer=[203.0.113.9] from=[0.0.0.0/0 10.0.0.0/8 203.0.113.0/24 fd00::/8]",
	},
	{
		name: "one malformed and one valid range",
		change: func(s *v1.Service) {
			balanced(s)
			s.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/33", "10.0.0.0/8"}
		},
		want:     "default/web [10.96.0.10] http=80/tcp@30080 balancer=[203.0.113.9] from=[10.0.0.0/8]",
		problems: []string{`Service default/web: spec.loadBalancerSourceRanges[0] "10.0.0.0/33": must be a CIDR, such as 10.244.1.0/24 or fd00:10:244:1::/64`},
	},
	{
		name: "only malformed ranges: no client has access",
		change: func(s *v1.Service) {
			balanced(s)
			s.Spec.LoadBalancerSourceRanges = []string{"10.0.0.1"}
		},
		want: "default/web [10.96.0.10] http=80/tcp@30080",
		problems: []string{
			`Service default/web: spec.loadBalancerSourceRanges[0] "10.0.0.1": must be a CIDR, such as 10.244.1.0/24 or fd00:10:244:1::/64`,
			`Service default/web: spec.loadBalancerSourceRanges: has no valid CIDR of the family of [203.0.113.9]. These addresses are not served, ` +
				`because without a range they would be open to every client; correct the range`,
		},
	},
	{
		name: "ranges also restrict a load balancer's address among the external IPs",
		change: func(s *v1.Service) {
			balanced(s)
			s.Spec.LoadBalancerSourceRanges, s.Spec.ExternalIPs = []string{"10.0.0.0/8"}, []string{"203.0.113.9", "198.51.100.7", "::ffff:203.0.113.9"}
		},
		want: "default/web [10.96.0.10] http=80/tcp@30080 external=[198.51.100.7] balancer=[203.0.113.9] from=[10.0.0.0/8]",
	},
	{
		name: "only malformed ranges, and an address that is also an external IP",
		change: func(s *v1.Service) {
			balanced(s)
			s.Spec.LoadBalancerSourceRanges, s.Spec.ExternalIPs = []string{"10.0.0.1"}, []string{"203.0.113.9"}
		},
		want: "default/web [10.96.0.10] http=80/tcp@30080",
		problems: []string{
			`Service default/web: spec.loadBalancerSourceRanges[0] "10.0.0.1": must be a CIDR, such as 10.244.1.0/24 or fd00:10:244:1::/64`,
			`Service default/web: spec.loadBalancerSourceRanges: has no valid CIDR of the family of [203.0.113.9]. These addresses are not served, ` +
				`because without a range they would be open to every client; correct the range`,
		},
	},
	{
		name: "the only range of one family malformed",
		change: func(s *v1.Service) {
			everythingExternal(s)
			s.Spec.LoadBalancerSourceRanges = []string{"203.0.113.0/24", "2001:db8:1::/148"}
		},
		want: "default/web [10.96.0.10] http=80/tcp@30080 external=[198.51.100.7 2001:db8::7] balancer=[203.0.113.9] " +
			"from=[203.0.113.0/24] internal=local external=local health=32000",
		problems: []string{
			`Service default/web: spec.loadBalancerSourceRanges[1] "2001:db8:1::/148": must be a CIDR, such as 10.244.1.0/24 or fd00:10:244:1::/64`,
			`Service default/web: spec.loadBalancerSourceRanges: has no valid CIDR of the family of [2001:db8::9]. These addresses are not served, ` +
				`because without a range they would be open to every client; correct the range`,
		},
	},
	{
		name:   "ranges without a load balancer",
		change: func(s *v1.Service) { s.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/8"} },
		want:   "default/web [10.96.0.10] http=80/tcp",
		problems: []string{`Service default/web: spec.loadBalancerSourceRanges: has no effect on a Service that is not of type LoadBalancer: ` +
			`every client has access; set spec.type to LoadBalancer, or remove the field`},
	},
	{
		name: "the older annotation is not used",
		change: func(s *v1.Service) {
			balanced(s)
			s.Annotations = map[string]string{v1.AnnotationLoadBalancerSourceRangesKey: "10.0.0.0/8"}
		},
		want: "default/web [10.96.0.10] http=80/tcp@30080 balancer=[203.0.113.9]",
	},
	{
		name: "health check out of range",
		change: func(s *v1.Service) {
			balanced(s)
			s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = v1.ServiceExternalTrafficPolicyLocal, 65536
		},
		want:     "default/web [10.96.0.10] http=80/tcp@30080 balancer=[203.0.113.9] external=local",
		problems: []string{`Service default/web: spec.healthCheckNodePort "65536": must be between 1 and 65535. The agent does not serve this health check`},
	},
	{
		name: "health check of a NodePort Service",
		change: func(s *v1.Service) {
			s.Spec.Type, s.Spec.Ports[0].NodePort = v1.ServiceTypeNodePort, 30080
			s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = v1.ServiceExternalTrafficPolicyLocal, 32000
		},
		want: "default/web [10.96.0.10] http=80/tcp@30080 external=local",
		problems: []string{`Service default/web: spec.healthCheckNodePort "32000": requires spec.type LoadBalancer and ` +
			`spec.externalTrafficPolicy Local. The agent does not serve this health check`},
	},
}

func TestConvertNodePort(t *testing.T) {
	const notOnNodes = ". The port is not served on node addresses"
	ports := func(kind v1.ServiceType, ports ...v1.ServicePort) func(*v1.Service) {
		return func(s *v1.Service) { s.Spec.Type, s.Spec.Ports = kind, ports }
	}
	runServiceCases(t, []serviceCase{
		{
			name: "one node port for two protocols",
			change: ports(v1.ServiceTypeNodePort, v1.ServicePort{Name: "a", Port: 53, NodePort: 30053},
				v1.ServicePort{Name: "b", Port: 53, Protocol: v1.ProtocolUDP, NodePort: 30053}),
			want: "default/web [10.96.0.10] a=53/tcp@30053 b=53/udp@30053",
		},
		{
			name: "one node port twice",
			change: ports(v1.ServiceTypeNodePort, v1.ServicePort{Name: "a", Port: 80, NodePort: 30080},
				v1.ServicePort{Name: "b", Port: 81, NodePort: 30080}),
			want:     "default/web [10.96.0.10] a=80/tcp@30080 b=81/tcp",
			problems: []string{`Service default/web: spec.ports[1].nodePort "30080": must be unique: another tcp port of the Service uses it` + notOnNodes},
		},
		{
			name:     "out of range",
			change:   ports(v1.ServiceTypeLoadBalancer, v1.ServicePort{Port: 80, NodePort: 65536}),
			want:     "default/web [10.96.0.10] =80/tcp",
			problems: []string{`Service default/web: spec.ports[0].nodePort "65536": must be between 1 and 65535` + notOnNodes},
		},
		{
			name:   "no node port behind a load balancer",
			change: ports(v1.ServiceTypeLoadBalancer, v1.ServicePort{Port: 80}),
			want:   "default/web [10.96.0.10] =80/tcp",
		},
		{
			name:   "no node port, type NodePort",
			change: ports(v1.ServiceTypeNodePort, v1.ServicePort{Port: 80}),
			want:   "default/web [10.96.0.10] =80/tcp",
			problems: []string{`Service default/web: spec.ports[0].nodePort: must be between 1 and 65535. An API server allocates one; ` +
				`a manifest must set it` + notOnNodes},
		},
		{
			name:     "node port, type ClusterIP",
			change:   ports("", v1.ServicePort{Port: 80, NodePort: 30080}),
			want:     "default/web [10.96.0.10] =80/tcp",
			problems: []string{`Service default/web: spec.ports[0].nodePort "30080": requires spec.type NodePort or LoadBalancer` + notOnNodes},
		},
		{
			name: "an invalid port does not use its node port",
			change: ports(v1.ServiceTypeNodePort, v1.ServicePort{Name: "a", Port: 0, NodePort: 30080},
				v1.ServicePort{Name: "b", Port: 80, NodePort: 30080}),
			want:     "default/web [10.96.0.10] b=80/tcp@30080",
			problems: []string{`Service default/web: spec.ports[0].port "0": must be between 1 and 65535`},
		},
	})
}
