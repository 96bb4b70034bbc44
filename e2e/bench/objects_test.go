package bench

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
)

const (
	nodeName      = "node-1"
	endpointsEach = 10
	perSlice      = 50 // endpoints of a large Service
	servicePort   = 80
	endpointPort  = 8080
)

var (
	apiService     = netip.MustParseAddrPort("10.96.0.1:443")
	dnsService     = netip.MustParseAddrPort("10.96.0.10:53")
	flippedService = netip.MustParseAddrPort("10.96.0.20:80")
	datagramSvc    = netip.MustParseAddrPort("10.96.0.22:80")
	// endpointRange contains the addresses of endpoints. A single pod answers on all of them.
	endpointRange = netip.MustParsePrefix("10.128.0.0/10")
	// flipped contains the two endpoints between which the flipped Service alternates.
	flipped          = [2]netip.Addr{special(1), special(2)}
	datagramEndpoint = special(3)
	// large contains the Services for rolling updates.
	large = []largeService{
		{"large", netip.MustParseAddrPort("10.96.0.21:80"), 250, 10_000},
		{"larger", netip.MustParseAddrPort("10.96.0.23:80"), 1000, 20_000},
	}
)

type largeService struct {
	name      string
	at        netip.AddrPort
	endpoints int
	first     int // number of its first special endpoint
}

// ordinary returns the address and port of the n-th ordinary Service. One Service in ten has a node port.
func ordinary(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 100, byte(n / 250), byte(n%250 + 1)}), servicePort)
}

func endpoint(n, i int) netip.Addr { return inRange(n*16 + i + 1) }

// replacement returns the endpoint that replaces another.
func replacement(n, i int) netip.Addr { return inRange(1<<20 + n*16 + i + 1) }

// special returns an endpoint of another Service.
func special(i int) netip.Addr { return inRange(3<<20 + i) }

func inRange(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 128 + byte(i>>16), byte(i >> 8), byte(i)})
}

// objects returns a cluster with the given number of ordinary Services.
func objects(services int, node, api netip.AddrPort) []runtime.Object {
	all := []runtime.Object{
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}, Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: node.Addr().String()}},
		}},
		service("kubernetes", apiService, corev1.ProtocolTCP), slice("kubernetes", 0, corev1.ProtocolTCP, api.Port(), api.Addr()),
		service("kube-dns", dnsService, corev1.ProtocolTCP), slice("kube-dns", 0, corev1.ProtocolTCP, endpointPort, special(4), special(5)),
		service("flipped", flippedService, corev1.ProtocolTCP), flippedSlice(0),
		service("datagrams", datagramSvc, corev1.ProtocolUDP), slice("datagrams", 0, corev1.ProtocolUDP, endpointPort, datagramEndpoint),
	}
	for _, l := range large {
		all = append(all, service(l.name, l.at, corev1.ProtocolTCP))
		for part := range l.endpoints / perSlice {
			all = append(all, l.slice(part, 0, 0))
		}
	}
	for n := range services {
		s := service(fmt.Sprint("svc-", n), ordinary(n), corev1.ProtocolTCP)
		if n%10 == 0 && n < 20_000 {
			s.Spec.Type, s.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, int32(30000+n/10)
		}
		all = append(all, s, ordinarySlice(n, 0, endpointsEach))
	}
	return all
}

// ordinarySlice returns the slice of the n-th ordinary Service. The first replaced endpoints have other addresses.
func ordinarySlice(n, replaced, endpoints int) *discoveryv1.EndpointSlice {
	return slice(fmt.Sprint("svc-", n), 0, corev1.ProtocolTCP, endpointPort, addresses(n, replaced, endpoints)...)
}

func addresses(n, replaced, endpoints int) (at []netip.Addr) {
	for i := range endpoints {
		if i < replaced {
			at = append(at, replacement(n, i))
		} else {
			at = append(at, endpoint(n, i))
		}
	}
	return at
}

func flippedSlice(which int) *discoveryv1.EndpointSlice {
	return slice("flipped", 0, corev1.ProtocolTCP, endpointPort, flipped[which])
}

// slice returns a slice of a large Service. replaced is the number of its endpoints with the addresses of the next generation.
func (l largeService) slice(part, generation, replaced int) *discoveryv1.EndpointSlice {
	var at []netip.Addr
	for i := range perSlice {
		of := generation
		if i < replaced {
			of++
		}
		at = append(at, special(l.first+of*l.endpoints+part*perSlice+i))
	}
	return slice(l.name, part, corev1.ProtocolTCP, endpointPort, at...)
}

func service(name string, at netip.AddrPort, protocol corev1.Protocol) *corev1.Service {
	namespace := "default"
	if name == "kube-dns" {
		namespace = "kube-system"
	}
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: at.Addr().String(), ClusterIPs: []string{at.Addr().String()},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, SessionAffinity: corev1.ServiceAffinityNone,
			InternalTrafficPolicy: ptr.To(corev1.ServiceInternalTrafficPolicyCluster), ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyCluster,
			Ports: []corev1.ServicePort{{Name: "main", Protocol: protocol, Port: int32(at.Port())}},
		},
	}
}

func slice(name string, part int, protocol corev1.Protocol, port uint16, at ...netip.Addr) *discoveryv1.EndpointSlice {
	namespace := "default"
	if name == "kube-dns" {
		namespace = "kube-system"
	}
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: fmt.Sprintf("%s-%d", name, part), Labels: map[string]string{discoveryv1.LabelServiceName: name},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("main"), Protocol: ptr.To(protocol), Port: ptr.To(int32(port))}},
	}
	for _, addr := range at {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{addr.String()}, NodeName: ptr.To("node-2"),
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true), Terminating: ptr.To(false)},
		})
	}
	return s
}
