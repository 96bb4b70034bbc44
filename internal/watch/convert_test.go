package watch

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/watch/watchtest"
)

const notServed = "-"

// I11: a mistake in a Service becomes a Problem of that Service, and the valid parts are served.
func TestConvertService(t *testing.T) { runServiceCases(t, serviceCases) }

var serviceCases = []serviceCase{
	{name: "plain", want: "default/web [10.96.0.10] http=80/tcp"},
	{
		name: "dual stack, several ports",
		change: func(s *v1.Service) {
			s.Spec.ClusterIPs = []string{"10.96.0.10", "fd00::10"}
			s.Spec.Ports = append(s.Spec.Ports, v1.ServicePort{Name: "dns", Protocol: v1.ProtocolUDP, Port: 80},
				v1.ServicePort{Name: "sig", Protocol: v1.ProtocolSCTP, Port: 65535})
		},
		want: "default/web [10.96.0.10 fd00::10] http=80/tcp dns=80/udp sig=65535/sctp",
	},
	{
		name:   "default protocol, only clusterIP set",
		change: func(s *v1.Service) { s.Spec.ClusterIPs, s.Spec.Ports[0].Protocol = nil, "" },
		want:   "default/web [10.96.0.10] http=80/tcp",
	},
	{
		name:     "unknown type",
		change:   func(s *v1.Service) { s.Spec.Type = "Nodeport" },
		want:     "default/web [10.96.0.10] http=80/tcp",
		problems: []string{`Service default/web: spec.type "Nodeport": must be ClusterIP, NodePort, LoadBalancer or ExternalName. The agent uses ClusterIP`},
	},
	{
		name: "leading zeros, stored by an old API server",
		change: func(s *v1.Service) {
			s.Spec.ClusterIP, s.Spec.ClusterIPs = "010.096.000.010", []string{"010.096.000.010"}
		},
		want: "default/web [10.96.0.10] http=80/tcp",
	},
	{
		name:   "IPv4-mapped address",
		change: func(s *v1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "", []string{"::ffff:10.96.0.10"} },
		want:   "default/web [10.96.0.10] http=80/tcp",
	},
	{name: "headless", change: func(s *v1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "None", []string{"None"} }, want: notServed},
	{name: "headless, clusterIP only", change: func(s *v1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "None", nil }, want: notServed},
	{
		name: "ExternalName",
		change: func(s *v1.Service) {
			s.Spec.Type, s.Spec.ClusterIP, s.Spec.ClusterIPs = v1.ServiceTypeExternalName, "", nil
		},
		want: notServed,
	},
	{name: "for another proxy", change: func(s *v1.Service) { s.Labels = map[string]string{labelProxyName: ""} }, want: notServed},
	{
		name:   "affinity",
		change: func(s *v1.Service) { s.Spec.SessionAffinity = v1.ServiceAffinityClientIP },
		want:   "default/web [10.96.0.10] http=80/tcp affinity=3h0m0s",
	},
	{
		name: "affinity with timeout",
		change: func(s *v1.Service) {
			s.Spec.SessionAffinity = v1.ServiceAffinityClientIP
			s.Spec.SessionAffinityConfig = &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{TimeoutSeconds: ptr(int32(86400))}}
		},
		want: "default/web [10.96.0.10] http=80/tcp affinity=24h0m0s",
	},
	{
		name: "affinity, timeout out of range",
		change: func(s *v1.Service) {
			s.Spec.SessionAffinity = v1.ServiceAffinityClientIP
			s.Spec.SessionAffinityConfig = &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{TimeoutSeconds: ptr(int32(-1))}}
		},
		want: "default/web [10.96.0.10] http=80/tcp affinity=3h0m0s",
		problems: []string{`Service default/web: spec.sessionAffinityConfig.clientIP.timeoutSeconds "-1": must be between 1 and 86400. ` +
			`The agent uses 10800`},
	},
	{
		name:     "unknown affinity",
		change:   func(s *v1.Service) { s.Spec.SessionAffinity = "Cookie" },
		want:     "default/web [10.96.0.10] http=80/tcp",
		problems: []string{`Service default/web: spec.sessionAffinity "Cookie": must be None or ClientIP. The agent uses None`},
	},
	{
		name: "one invalid port of three",
		change: func(s *v1.Service) {
			s.Spec.Ports = append(s.Spec.Ports, v1.ServicePort{Name: "big", Port: 70000}, v1.ServicePort{Name: "https", Port: 443})
		},
		want:     "default/web [10.96.0.10] http=80/tcp https=443/tcp",
		problems: []string{`Service default/web: spec.ports[1].port "70000": must be between 1 and 65535`},
	},
	{
		name: "every kind of invalid port",
		change: func(s *v1.Service) {
			s.Spec.Ports = append(s.Spec.Ports, v1.ServicePort{Name: "a", Port: 0}, v1.ServicePort{Name: "b", Port: 1, Protocol: "ICMP"},
				v1.ServicePort{Name: "http", Port: 2}, v1.ServicePort{Name: "c", Port: 80}, v1.ServicePort{Name: "x\ny", Port: 3})
		},
		want: "default/web [10.96.0.10] http=80/tcp",
		problems: []string{
			`Service default/web: spec.ports[1].port "0": must be between 1 and 65535`,
			`Service default/web: spec.ports[2].protocol "ICMP": must be TCP, UDP or SCTP`,
			`Service default/web: spec.ports[3].name "http": must be unique: EndpointSlices refer to a port by its name`,
			`Service default/web: spec.ports[4].port "80": must be unique: another tcp port of the Service uses it`,
			`Service default/web: spec.ports[5].name "x\ny": must be at most 63 lowercase letters, digits and '-'`,
		},
	},
	{
		name:     "no port",
		change:   func(s *v1.Service) { s.Spec.Ports = nil },
		want:     notServed,
		problems: []string{`Service default/web: spec.ports: has no usable port. The Service is not served`},
	},
	{
		name:   "no address",
		change: func(s *v1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "", nil },
		want:   notServed,
		problems: []string{`Service default/web: spec.clusterIP: must be an IP address. An API server allocates one; ` +
			`a manifest must set it. The Service is not served`},
	},
	{
		name: "every kind of invalid address",
		change: func(s *v1.Service) {
			s.Spec.ClusterIPs = []string{"10.96.0.10", "10.96.0.11", "fd00::zz", "fe80::1%eth0", "::1"}
		},
		want: "default/web [10.96.0.10] http=80/tcp",
		problems: []string{
			`Service default/web: spec.clusterIPs[1] "10.96.0.11": must be of the other family: a Service can have only one IPv4 address`,
			`Service default/web: spec.clusterIPs[2] "fd00::zz": must be an IP address, such as 10.96.0.10 or fd00::10`,
			`Service default/web: spec.clusterIPs[3] "fe80::1%eth0": must be an IP address without a zone`,
			`Service default/web: spec.clusterIPs[4] "::1": must be an address in the Service range; this is a loopback address, which every node has`,
		},
	},
	{
		name:   "no valid address",
		change: func(s *v1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "0.0.0.0", nil },
		want:   notServed,
		problems: []string{
			`Service default/web: spec.clusterIP "0.0.0.0": must be an address in the Service range; this is not a host address`,
			`Service default/web: spec.clusterIP: has no usable address. The Service is not served`,
		},
	},
	{
		name:     "clusterIP and clusterIPs differ",
		change:   func(s *v1.Service) { s.Spec.ClusterIP = "10.96.0.11" },
		want:     "default/web [10.96.0.10] http=80/tcp",
		problems: []string{`Service default/web: spec.clusterIP "10.96.0.11": must equal spec.clusterIPs[0], which is "10.96.0.10". The agent uses spec.clusterIPs`},
	},
}

func checkConversion(t *testing.T, change func(*v1.Service), want string, problems []string) {
	t.Helper()
	r := newTestConverter().service(testService("web", change), "")
	got := notServed
	if r.Service != nil {
		got = watchtest.ServiceText(r.Service)
	}
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	diffProblems(t, r.Problems, problems)
	watchtest.Check(t, r.Service, r.Slice, r.Node, r.Problems)
	for _, p := range r.Problems {
		if p.Service != (model.ServiceID{Namespace: "default", Name: "web"}) {
			t.Errorf("problem %v belongs to Service %v", p, p.Service)
		}
	}
}

var sliceCases = []struct {
	name     string
	change   func(*discoveryv1.EndpointSlice)
	want     string
	problems []string
}{
	{name: "no conditions", want: "web-1 IPv4 http=8080/tcp 10.244.1.5+ready+serving"},
	{
		name: "conditions, node, zone, pod",
		change: func(s *discoveryv1.EndpointSlice) {
			s.Endpoints = []discoveryv1.Endpoint{
				{
					Addresses: []string{"10.244.1.5", "10.244.1.6"}, NodeName: ptr("n1"), Zone: ptr("z1"),
					TargetRef: &v1.ObjectReference{Kind: "Pod", Namespace: "other", Name: "p"},
				},
				{
					Addresses:  []string{"10.244.1.7"},
					Conditions: discoveryv1.EndpointConditions{Ready: ptr(false), Serving: ptr(true), Terminating: ptr(true)},
					TargetRef:  &v1.ObjectReference{Kind: "Pod", Name: "q"},
				},
				{
					Addresses:  []string{"10.244.1.8"},
					Conditions: discoveryv1.EndpointConditions{Ready: ptr(false)},
					TargetRef:  &v1.ObjectReference{Kind: "VM", Name: "v"},
				},
			}
		},
		want: "web-1 IPv4 http=8080/tcp 10.244.1.5+ready+serving@n1@z1@other/p 10.244.1.7+serving+terminating@default/q 10.244.1.8+serving",
	},
	{
		name: "hints",
		change: func(s *discoveryv1.EndpointSlice) {
			s.Endpoints = []discoveryv1.Endpoint{
				{Addresses: []string{"10.244.1.5"}, Hints: &discoveryv1.EndpointHints{
					ForNodes: []discoveryv1.ForNode{{Name: "n2"}, {Name: "n1"}, {Name: "n2"}}, ForZones: []discoveryv1.ForZone{{Name: "a"}},
				}},
				{Addresses: []string{"10.244.1.6"}, Hints: &discoveryv1.EndpointHints{}},
			}
		},
		want: "web-1 IPv4 http=8080/tcp 10.244.1.5+ready+serving+nodes[n1 n2]+zones[a] 10.244.1.6+ready+serving",
	},
	{
		name: "ports without number, name or protocol",
		change: func(s *discoveryv1.EndpointSlice) {
			s.Ports = []discoveryv1.EndpointPort{{Name: ptr("all")}, {Name: ptr("zero"), Port: ptr(int32(0))}, {Port: ptr(int32(53))}}
		},
		want: "web-1 IPv4 =53/tcp 10.244.1.5+ready+serving",
	},
	{
		name: "IPv6",
		change: func(s *discoveryv1.EndpointSlice) {
			s.AddressType, s.Endpoints[0].Addresses = discoveryv1.AddressTypeIPv6, []string{"fd00:0:0::5"}
		},
		want: "web-1 IPv6 http=8080/tcp fd00::5+ready+serving",
	},
	{
		name:   "IPv4-mapped address",
		change: func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Addresses[0] = "::ffff:10.244.1.5" },
		want:   "web-1 IPv4 http=8080/tcp 10.244.1.5+ready+serving",
	},
	{
		name: "IPv4-mapped address in an IPv6 slice",
		change: func(s *discoveryv1.EndpointSlice) {
			s.AddressType, s.Endpoints[0].Addresses[0] = "IPv6", "::ffff:10.244.1.5"
		},
		want: "web-1 IPv6 http=8080/tcp",
		problems: []string{`EndpointSlice default/web-1: endpoints[0].addresses[0] "::ffff:10.244.1.5": must be an IPv6 address, the ` +
			`addressType of the slice. The endpoint is not used`},
	},
	{name: "FQDN", change: func(s *discoveryv1.EndpointSlice) { s.AddressType = discoveryv1.AddressTypeFQDN }, want: notServed},
	{name: "headless", change: func(s *discoveryv1.EndpointSlice) { s.Labels[v1.IsHeadlessService] = "" }, want: notServed},
	{name: "for another proxy", change: func(s *discoveryv1.EndpointSlice) { s.Labels[labelProxyName] = "x" }, want: notServed},
	{name: "no Service", change: func(s *discoveryv1.EndpointSlice) { s.Labels = nil }, want: notServed},
	{
		name:     "unknown family",
		change:   func(s *discoveryv1.EndpointSlice) { s.AddressType = "IPv5" },
		want:     notServed,
		problems: []string{`EndpointSlice default/web-1: addressType "IPv5": must be IPv4, IPv6 or FQDN. The slice is not used`},
	},
	{
		name: "every kind of invalid endpoint",
		change: func(s *discoveryv1.EndpointSlice) {
			for _, a := range []string{"web.example", "fd00::1", "224.0.0.1", "169.254.1.1"} {
				s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
			}
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{})
		},
		want: "web-1 IPv4 http=8080/tcp 10.244.1.5+ready+serving",
		problems: []string{
			`EndpointSlice default/web-1: endpoints[1].addresses[0] "web.example": must be an IP address, such as 10.96.0.10 or fd00::10. The endpoint is not used`,
			`EndpointSlice default/web-1: endpoints[2].addresses[0] "fd00::1": must be an IPv4 address, the addressType of the slice. The endpoint is not used`,
			`EndpointSlice default/web-1: endpoints[3].addresses[0] "224.0.0.1": must be the address of a pod or host; this is a multicast address. The endpoint is not used`,
			`EndpointSlice default/web-1: endpoints[4].addresses[0] "169.254.1.1": must be the address of a pod or host; ` +
				`this is a link-local address, which names a different host on every link. The endpoint is not used`,
			`EndpointSlice default/web-1: endpoints[5].addresses: must have an address. The endpoint is not used`,
		},
	},
	{
		name: "a loopback endpoint, which compile refuses except in user space",
		change: func(s *discoveryv1.EndpointSlice) {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{"127.0.0.1"}})
		},
		want: "web-1 IPv4 http=8080/tcp 10.244.1.5+ready+serving 127.0.0.1+ready+serving",
	},
	{
		name: "every kind of invalid port",
		change: func(s *discoveryv1.EndpointSlice) {
			s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: ptr("a"), Port: ptr(int32(-1))},
				discoveryv1.EndpointPort{Name: ptr("b"), Port: ptr(int32(1)), Protocol: ptr(v1.Protocol("QUIC"))},
				discoveryv1.EndpointPort{Name: ptr("http"), Port: ptr(int32(1))})
		},
		want: "web-1 IPv4 http=8080/tcp 10.244.1.5+ready+serving",
		problems: []string{
			`EndpointSlice default/web-1: ports[1].port "-1": must be between 1 and 65535`,
			`EndpointSlice default/web-1: ports[2].protocol "QUIC": must be TCP, UDP or SCTP`,
			`EndpointSlice default/web-1: ports[3].name "http": must be unique among the ports of the slice`,
		},
	},
}

func TestConvertEndpointSlice(t *testing.T) {
	for _, tt := range sliceCases {
		t.Run(tt.name, func(t *testing.T) {
			r := newTestConverter().endpointSlice(testSlice("web-1", "web", tt.change), "")
			got := notServed
			if r.Slice != nil {
				got = watchtest.SliceText(r.Slice)
			}
			if got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			diffProblems(t, r.Problems, tt.problems)
		})
	}
}

func testAddresses(pairs ...string) (list []v1.NodeAddress) {
	for i := 0; i < len(pairs); i += 2 {
		list = append(list, v1.NodeAddress{Type: v1.NodeAddressType(pairs[i]), Address: pairs[i+1]})
	}
	return list
}

var nodeCases = []struct {
	name     string
	node     v1.Node
	want     string
	problems []string
}{
	{name: "empty", want: "node n1 [] pods=[]"},
	{
		name: "dual stack, host bits", want: "node n1 [] pods=[10.244.1.0/24 fd00:1::/64]",
		node: v1.Node{Spec: v1.NodeSpec{PodCIDR: "10.244.1.7/24", PodCIDRs: []string{"10.244.1.7/24", "fd00:1::1/64"}}},
	},
	{
		name: "deprecated field", want: "node n1 [] pods=[10.244.1.0/24]",
		node: v1.Node{Spec: v1.NodeSpec{PodCIDR: "10.244.1.0/24"}},
	},
	{
		name: "IPv4-mapped address", want: "node n1 [192.0.2.1] pods=[10.244.1.0/24]",
		node: v1.Node{
			Spec:   v1.NodeSpec{PodCIDRs: []string{"::ffff:10.244.1.0/120"}},
			Status: v1.NodeStatus{Addresses: testAddresses("InternalIP", "::ffff:192.0.2.1")},
		},
	},
	{
		name: "invalid", want: "node n1 [192.0.2.2] pods=[10.244.2.0/24]",
		node: v1.Node{
			Spec:   v1.NodeSpec{PodCIDRs: []string{"10.244.1.0", "10.244.2.0/24"}},
			Status: v1.NodeStatus{Addresses: testAddresses("InternalIP", "n1.example", "InternalIP", "192.0.2.2")},
		},
		problems: []string{
			`Node n1: status.addresses[0].address "n1.example": must be an IP address, such as 10.96.0.10 or fd00::10`,
			`Node n1: spec.podCIDRs[0] "10.244.1.0": must be a CIDR, such as 10.244.1.0/24 or fd00:10:244:1::/64`,
		},
	},
	{
		name: "internal addresses first, without duplicates, names and unusable addresses",
		want: "node n1 [192.0.2.1 fd00::1 198.51.100.1] pods=[]",
		node: v1.Node{Status: v1.NodeStatus{Addresses: testAddresses(
			"Hostname", "n1", "ExternalIP", "198.51.100.1", "InternalIP", "192.0.2.1", "InternalIP", "fe80::1", "InternalDNS", "192.0.2.9",
			"InternalIP", "fd00::1", "ExternalIP", "192.0.2.1", "InternalIP", "",
		)}},
	},
	{
		name: "zone", want: "node n1 [] pods=[] zone=a",
		node: v1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{
			"topology.kubernetes.io/zone": "a", "failure-domain.beta.kubernetes.io/zone": "b",
		}}},
	},
	{
		name: "old label for the zone", want: "node n1 [] pods=[]",
		node: v1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"failure-domain.beta.kubernetes.io/zone": "b"}}},
	},
	{
		name: "being deleted", want: "node n1 [] pods=[] leaving",
		node: v1.Node{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: ptr(metav1.Unix(1, 0))}},
	},
	{
		name: "marked by the cluster autoscaler", want: "node n1 [] pods=[] leaving",
		node: v1.Node{Spec: v1.NodeSpec{Taints: []v1.Taint{{Key: "x"}, {Key: "ToBeDeletedByClusterAutoscaler", Effect: "NoSchedule"}}}},
	},
	{
		name: "cordoned", want: "node n1 [] pods=[]",
		node: v1.Node{Spec: v1.NodeSpec{Unschedulable: true, Taints: []v1.Taint{{Key: v1.TaintNodeUnschedulable}}}},
	},
}

func TestConvertNode(t *testing.T) {
	for _, tt := range nodeCases {
		t.Run(tt.name, func(t *testing.T) {
			tt.node.Name = "n1"
			r := newTestConverter().node(&tt.node, "")
			if got := watchtest.NodeText(r.Node); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			diffProblems(t, r.Problems, tt.problems)
		})
	}
}

// A thousand invalid endpoints do not cause a thousand Events, and long values are shortened.
func TestProblemsOfOneObjectAreLimited(t *testing.T) {
	slice := testSlice("web-1", "web", func(s *discoveryv1.EndpointSlice) {
		s.Endpoints = nil
		for range 1000 {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{strings.Repeat("x", 10000)}})
		}
	})
	problems := newTestConverter().endpointSlice(slice, "").Problems
	if len(problems) != maxProblems+1 {
		t.Fatalf("%d problems", len(problems))
	}
	if last := problems[maxProblems].Reason; last != "984 more problems" {
		t.Error(last)
	}
	if len(problems[0].Value) > 100 {
		t.Errorf("the value has %d bytes, want at most 100", len(problems[0].Value))
	}
}

func diffProblems(t *testing.T, got []model.Problem, want []string) {
	t.Helper()
	var lines []string
	for _, p := range got {
		lines = append(lines, p.String())
	}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}
