package services

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/manifest"
)

// hostile generates objects that claim other users' addresses and ports.
type hostile struct {
	*rand.Rand
	client kubernetes.Interface
	// The API server accepts addresses in anywhere from every user, and addresses in special only from a load
	// balancer controller.
	anywhere, special []string
	ports             []int32
	accepted, refused int
}

// The second namespace's name has the maximum length.
var tenants = []string{"tenant-a", "tenant-" + strings.Repeat("z", 56)}

// forbidden contains addresses that no node may serve for a tenant's Service.
func (s *stage) forbidden() (anywhere, special []string) {
	anywhere = []string{
		"192.168.50.1", "fd00:50::1", // gateway and API server
		"192.168.50.0", "192.168.50.255", "fd00:50::", // network and broadcast addresses
		"239.1.2.3", "255.255.255.255", "fd00:ec2::254",
	}
	for _, f := range s.FamilyList() {
		for _, host := range []*cluster.Host{s.client.Host, s.farClient.Host, s.sameNode.Host, s.otherNode.Host} {
			anywhere = append(anywhere, host.Addr(f).String())
		}
	}
	special = []string{"0.0.0.0", "127.0.0.1", "169.254.169.254", "169.254.1.1", "224.0.0.1", "::", "::1", "fe80::1", "ff02::1"}
	return anywhere, special
}

func (s *stage) hostile(t *testing.T, seed uint64, ordinary ...service) *hostile {
	t.Helper()
	config := s.api.Client()
	config.WarningHandler = rest.NoWarnings{} // about spec.externalIPs
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("seed %d", seed)
	h := &hostile{Rand: rand.New(rand.NewPCG(seed, 0)), client: client, ports: []int32{1, 22, 80, 443, 2379, 6443, 8080, 10249, 10250, 10256, 65535}}
	h.anywhere, h.special = s.forbidden()
	for _, f := range s.FamilyList() {
		for _, n := range s.Nodes {
			h.anywhere = append(h.anywhere, n.Addr(f).String())
		}
	}
	for _, svc := range ordinary {
		h.anywhere = append(h.anywhere, slices.Concat(svc.Balancer(), svc.Spec.ClusterIPs)...)
		h.ports = append(h.ports, int32(svc.NodePort()))
	}
	for _, name := range tenants {
		manifest := fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: %s}}", name)
		s.apply(t, manifest)
		t.Cleanup(func() {
			h.deleteAll(t, name)
			s.remove(t, manifest)
		})
	}
	return h
}

var values = []string{
	"0", "1", "-1", "2", "2147483647", "2147483648", "4294967295", "4294967296", "18446744073709551616", "1e9", "0x10", "",
	"1s", "0s", "999ms", "1h", "3601s", "744h", "745h", "-1s", "9999999999999h", "32", "33", "128", "129", "all", "each", "true", "TRUE",
	"wrr", "lblc", "mh", "sh-port", "mh-fallback,mh-port", "flag-3", "none", "nonexistent", "zone-a=0,zone-b=2147483647", "zone-a=2147483648",
	"node-1=0,node-1=1", "web-1=0,web-2=0", "../../etc/passwd=1", "a=b=c", strings.Repeat(",", 1000), strings.Repeat("9", 10_000),
	"\x1b[31m\r\nlevel=error msg=forged", "\x00\u202e\u2028", "%s%n{{.}}", strings.Repeat("w=1,", 5000),
}

var annotations = []string{
	"scheduler", "scheduler-flags", "affinity-timeout", "affinity-prefix-ipv4", "affinity-prefix-ipv6", "affinity-ports", "one-packet", "proxy-protocol",
	"max-connections", "resume-connections", "weight", "weight-by-zone", "weight-by-node", "weight-by-pod", "slow-start", "nonexistent",
}

func oneFrom[T any](h *hostile, list []T) T { return list[h.IntN(len(list))] }

func some[T any](h *hostile, most int, list []T) (all []T) {
	for range h.IntN(most + 1) {
		all = append(all, oneFrom(h, list))
	}
	return all
}

func (h *hostile) name(i, most int) string {
	name := fmt.Sprintf("h%d-%s", i, strings.Repeat("x-", most))
	return name[:5+h.IntN(most-5)] + "x"
}

func (h *hostile) meta(i, longest int) metav1.ObjectMeta {
	meta := metav1.ObjectMeta{
		Namespace: tenants[i%2], Name: h.name(i, longest), Annotations: map[string]string{},
		Labels: map[string]string{strings.Repeat("l", 63): strings.Repeat("V", 63), strings.Repeat("a.", 126) + "a/x": ""},
	}
	for _, key := range some(h, 6, annotations) {
		meta.Annotations["kube-ipvs.io/"+key] = oneFrom(h, values)
	}
	return meta
}

func (h *hostile) service(i int) *corev1.Service {
	svc := &corev1.Service{ObjectMeta: h.meta(i, 63)}
	svc.Spec = corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, ClusterIP: fmt.Sprintf("10.96.200.%d", i), AllocateLoadBalancerNodePorts: ptr.To(i%2 == 0),
		IPFamilyPolicy: ptr.To(corev1.IPFamilyPolicyPreferDualStack),
		ExternalIPs:    some(h, 4, h.anywhere), SessionAffinity: oneFrom(h, []corev1.ServiceAffinity{corev1.ServiceAffinityNone, corev1.ServiceAffinityClientIP}),
	}
	for n, number := range h.Perm(len(h.ports))[:1+h.IntN(3)] {
		p := corev1.ServicePort{Name: strings.Repeat(string(rune('a'+n)), 63), Port: h.ports[number]}
		p.Protocol = oneFrom(h, []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolTCP, corev1.ProtocolUDP})
		if *svc.Spec.AllocateLoadBalancerNodePorts {
			p.NodePort = int32(32_000 + 3*i + n)
		}
		svc.Spec.Ports = append(svc.Spec.Ports, p)
	}
	for _, ip := range append(some(h, 2, h.anywhere), some(h, 2, h.special)...) {
		svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
	}
	return svc
}

func (h *hostile) slice(i int, svc *corev1.Service, family cluster.Family) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{ObjectMeta: h.meta(i, 253), AddressType: discoveryv1.AddressTypeIPv4}
	if family == cluster.V6 {
		slice.AddressType = discoveryv1.AddressTypeIPv6
	}
	slice.Labels[discoveryv1.LabelServiceName] = svc.Name
	for _, addr := range some(h, 8, append(h.anywhere, "10.244.1.250", "10.244.2.251", "fd00:10:244:1::250", "fd00:10:244:2::251")) {
		if manifest.FamilyOf(addr) == family {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{addr}, NodeName: ptr.To(oneFrom(h, []string{"node-1", "x"}))})
		}
	}
	for _, p := range svc.Spec.Ports {
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: ptr.To(p.Name), Protocol: ptr.To(p.Protocol), Port: ptr.To(oneFrom(h, h.ports))})
	}
	return slice
}

func (h *hostile) count(err error) bool {
	if err != nil {
		h.refused++
		return false
	}
	h.accepted++
	return true
}

func (h *hostile) create(t *testing.T, i int) {
	svc := h.service(i)
	status, services := svc.Status, h.client.CoreV1().Services(svc.Namespace)
	made, err := services.Create(t.Context(), svc, metav1.CreateOptions{})
	if h.count(err) {
		made.Status = status
		_, err = services.UpdateStatus(t.Context(), made, metav1.UpdateOptions{})
		h.count(err)
	} else {
		t.Logf("the API server refuses object %d: %.300v", i, err)
	}
	for _, family := range []cluster.Family{cluster.V4, cluster.V4, cluster.V6} {
		_, err = h.client.DiscoveryV1().EndpointSlices(svc.Namespace).Create(t.Context(), h.slice(i, svc, family), metav1.CreateOptions{})
		h.count(err)
	}
}

func (h *hostile) deleteAll(t *testing.T, namespace string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	everything, now := metav1.ListOptions{}, metav1.DeleteOptions{}
	services, err := h.client.CoreV1().Services(namespace).List(ctx, everything)
	for i := range services.Items {
		err = errors.Join(err, h.client.CoreV1().Services(namespace).Delete(ctx, services.Items[i].Name, now))
	}
	err = errors.Join(err,
		h.client.DiscoveryV1().EndpointSlices(namespace).DeleteCollection(ctx, now, everything),
		h.client.EventsV1().Events(namespace).DeleteCollection(ctx, now, everything))
	if err != nil {
		t.Error(err)
	}
}

// flap calls change as fast as possible until the returned function is called.
func flap(t *testing.T, what string, change func(stopped <-chan struct{}, n int) error) (stop func()) {
	t.Helper()
	stopped := make(chan struct{})
	var done sync.WaitGroup
	begin, n := time.Now(), 0
	done.Go(func() {
		for ; !isClosed(stopped); n++ {
			if err := change(stopped, n); err != nil && t.Context().Err() == nil {
				t.Errorf("%s: %v", what, err)
				return
			}
		}
	})
	stop = sync.OnceFunc(func() {
		close(stopped)
		done.Wait()
		t.Logf("%s: %d changes, %.0f per second", what, n, float64(n)/time.Since(begin).Seconds())
	})
	t.Cleanup(stop)
	return stop
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (h *hostile) flapSlice(t *testing.T) (stop func()) {
	t.Helper()
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: tenants[0], Name: "flapping"}}
	svc.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, ClusterIP: flapping, Ports: []corev1.ServicePort{{Port: 80, NodePort: 31_999}}}
	if _, err := h.client.CoreV1().Services(svc.Namespace).Create(t.Context(), svc, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return h.flapSliceOf(t, svc.Name)
}

// flapSliceOf changes a slice's endpoint continuously. Agents ignore a slice that names no Service, but it costs the
// API server the same work.
func (h *hostile) flapSliceOf(t *testing.T, svc string) (stop func()) {
	t.Helper()
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: tenants[0], Name: "flapping-" + cmp.Or(svc, "unused")}}
	slice.AddressType, slice.Ports = discoveryv1.AddressTypeIPv4, []discoveryv1.EndpointPort{{Name: ptr.To(""), Port: ptr.To[int32](8080)}}
	if svc != "" {
		slice.Labels = map[string]string{discoveryv1.LabelServiceName: svc}
	}
	slices := h.client.DiscoveryV1().EndpointSlices(slice.Namespace)
	if _, err := slices.Create(t.Context(), slice, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return flap(t, "change EndpointSlice "+slice.Name, func(_ <-chan struct{}, n int) error {
		slice.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{fmt.Sprintf("10.244.1.%d", 240+n%3)}}}
		_, err := slices.Update(t.Context(), slice, metav1.UpdateOptions{})
		return err
	})
}

// flapping is the ClusterIP of the flapping Service.
const flapping = "10.96.201.1"
