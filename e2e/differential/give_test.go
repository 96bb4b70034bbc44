package differential

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-ipvs/kube-ipvs/e2e/differential/draw"
	"github.com/kube-ipvs/kube-ipvs/e2e/differential/judge"
)

const requests = 16

// give makes the API server contain exactly these objects and the next marker. It creates the marker last, and then
// removes the previous marker. A program that has processed this removal has processed all objects.
func (s *stage) give(t *testing.T, set draw.Set) {
	t.Helper()
	s.epoch++
	begin := time.Now()
	leaver, marker := s.pointers()
	rounds := [][]draw.Document{set.Documents(), leaver.Documents(), marker.Documents()}
	wanted := map[string]draw.Document{}
	for _, docs := range rounds {
		for _, d := range docs {
			wanted[d.Key] = d
		}
	}
	gone, before := s.unwanted(wanted)
	s.each(t, gone, s.remove)
	written := 0
	for _, docs := range rounds {
		changed := s.changed(docs)
		s.each(t, changed, s.put)
		written += len(changed)
	}
	s.each(t, before, s.remove)
	s.applied, s.given = wanted, set
	t.Logf("  %d objects applied and %d removed in %s", written, len(gone), time.Since(begin).Round(100*time.Millisecond))
}

// unwanted returns the objects to remove and, separately, the previous marker.
func (s *stage) unwanted(wanted map[string]draw.Document) (gone, before []draw.Document) {
	for key, d := range s.applied {
		switch _, still := wanted[key]; {
		case still:
		case strings.Contains(key, markerName):
			before = append(before, d)
		default:
			gone = append(gone, d)
		}
	}
	return gone, before
}

func (s *stage) changed(docs []draw.Document) []draw.Document {
	var changed []draw.Document
	for _, d := range docs {
		if s.applied[d.Key].YAML != d.YAML {
			changed = append(changed, d)
		}
	}
	return changed
}

func (s *stage) each(t *testing.T, docs []draw.Document, do func(context.Context, draw.Document) error) {
	t.Helper()
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(requests)
	for _, d := range docs {
		group.Go(func() error {
			if err := do(ctx, d); err != nil {
				return fmt.Errorf("%s: %w", d.Key, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
}

// put replaces whole objects, as controllers do. Server-side apply is several times slower in an emulated guest.
func (s *stage) put(ctx context.Context, d draw.Document) error {
	_, exists := s.applied[d.Key]
	switch o := d.Object.(type) {
	case *corev1.Node:
		nodes := s.client.CoreV1().Nodes()
		if err := put(ctx, nodes, o, exists); err != nil {
			return err
		}
		_, err := nodes.UpdateStatus(ctx, o, metav1.UpdateOptions{})
		return err
	case *corev1.Service:
		services := s.client.CoreV1().Services(o.Namespace)
		if err := put(ctx, services, o, exists); err != nil || !exists && len(o.Status.LoadBalancer.Ingress) == 0 {
			return err
		}
		_, err := services.UpdateStatus(ctx, o, metav1.UpdateOptions{})
		return err
	case *discovery.EndpointSlice:
		return put(ctx, s.client.DiscoveryV1().EndpointSlices(o.Namespace), o, exists)
	}
	return fmt.Errorf("no client for %T", d.Object)
}

type typed[T any] interface {
	Create(context.Context, T, metav1.CreateOptions) (T, error)
	Update(context.Context, T, metav1.UpdateOptions) (T, error)
}

func put[T any](ctx context.Context, client typed[T], object T, exists bool) error {
	if exists {
		_, err := client.Update(ctx, object, metav1.UpdateOptions{})
		return err
	}
	_, err := client.Create(ctx, object, metav1.CreateOptions{})
	return err
}

func (s *stage) remove(ctx context.Context, d draw.Document) error {
	var err error
	switch o := d.Object.(type) {
	case *corev1.Node:
		err = s.client.CoreV1().Nodes().Delete(ctx, o.Name, metav1.DeleteOptions{})
	case *corev1.Service:
		err = s.client.CoreV1().Services(o.Namespace).Delete(ctx, o.Name, metav1.DeleteOptions{})
	case *discovery.EndpointSlice:
		err = s.client.DiscoveryV1().EndpointSlices(o.Namespace).Delete(ctx, o.Name, metav1.DeleteOptions{})
	}
	return err
}

// The marker shows that a program has processed all objects. Its address changes with every epoch. kube-proxy removes
// the previous address at the end of a sync. The leaver keeps its address but changes its only endpoint.
const markerName = "zz-marker"

var leaverAddresses = []netip.Addr{netip.MustParseAddr("10.96.255.2"), netip.MustParseAddr("fd00:10:96::ff02")}

func markerAddress(epoch int, v6 bool) netip.Addr {
	host := byte(16 + epoch%128)
	if v6 {
		return netip.MustParseAddr(fmt.Sprintf("fd00:10:96::ff%02x", host))
	}
	return netip.AddrFrom4([4]byte{10, 96, 255, host})
}

// points reports whether a virtual server belongs to the marker or the leaver.
func (s *stage) points(key judge.Key) bool {
	a := key.Addr.Addr()
	return slices.Contains(leaverAddresses, a) || a == markerAddress(s.epoch, a.Is6())
}

const pointerPort = 80

func tcpKey(addr netip.Addr) judge.Key {
	return judge.Key{Protocol: corev1.ProtocolTCP, Addr: netip.AddrPortFrom(addr, pointerPort)}
}

// current returns the pod behind the marker and the leaver.
func (s *stage) current() draw.Pod { return s.world.Pods[s.epoch%2*3] }

func (s *stage) pointers() (leaver, marker draw.Set) {
	return s.pointer("zz-leaver", leaverAddresses),
		s.pointer(fmt.Sprintf("%s-%d", markerName, s.epoch), []netip.Addr{markerAddress(s.epoch, false), markerAddress(s.epoch, true)})
}

// pointer returns a set with a Service that has one endpoint.
func (s *stage) pointer(name string, ips []netip.Addr) draw.Set {
	service := &corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}}
	service.Name, service.Namespace = name, metav1.NamespaceDefault
	policy := corev1.IPFamilyPolicyRequireDualStack
	service.Spec = corev1.ServiceSpec{
		ClusterIP: ips[0].String(), ClusterIPs: []string{ips[0].String(), ips[1].String()},
		IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}, IPFamilyPolicy: &policy,
		Ports: []corev1.ServicePort{{Port: pointerPort, Protocol: corev1.ProtocolTCP}},
	}
	all := []*discovery.EndpointSlice{}
	for _, family := range service.Spec.IPFamilies {
		slice := &discovery.EndpointSlice{TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}}
		slice.Name, slice.Namespace = strings.ToLower(name+"-"+string(family)), service.Namespace
		slice.Labels = map[string]string{discovery.LabelServiceName: name}
		slice.AddressType = discovery.AddressType(family)
		port, protocol, portName, node := targetPorts[0], corev1.ProtocolTCP, "", s.current().Node
		slice.Ports = []discovery.EndpointPort{{Name: &portName, Port: &port, Protocol: &protocol}}
		slice.Endpoints = []discovery.Endpoint{{Addresses: []string{s.current().Addr(family == corev1.IPv6Protocol).String()}, NodeName: &node}}
		all = append(all, slice)
	}
	return draw.Set{Services: []draw.Service{{Object: service, Slices: all}}}
}
