package watch

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/watch/watchtest"
)

// cluster returns n Services with one slice of ten endpoints each, as the control plane writes them. Each string is a
// separate copy, like the strings from the decoder.
func cluster(n int) (services, slices []k8sruntime.Object) {
	for i := range n {
		name := fmt.Sprintf("service-%05d", i)
		services = append(services, testService(name, func(s *v1.Service) {
			s.UID = "3f0a5b1e-4b52-4c1f-9d3a-000000000000"
			s.Spec.ClusterIP = fmt.Sprintf("10.96.%d.%d", i/250, i%250+1)
			s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
			s.ManagedFields = []metav1.ManagedFieldsEntry{{FieldsV1: metav1.NewFieldsV1(strings.Repeat("x", 800))}}
		}))
		slices = append(slices, testSlice(name+"-abcde", name, func(s *discoveryv1.EndpointSlice) {
			s.Endpoints = nil
			for j := range 10 {
				s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
					Addresses:  []string{fmt.Sprintf("10.%d.%d.%d", 128+i/6000, i/25%240, i%25*10+j)},
					Conditions: discoveryv1.EndpointConditions{Ready: ptr(true), Serving: ptr(true), Terminating: ptr(false)},
					NodeName:   ptr(fmt.Sprintf("node-%04d", (i*10+j)%1000)), Zone: ptr(fmt.Sprintf("zone-%d", j%3)),
					TargetRef: &v1.ObjectReference{Kind: "Pod", Namespace: "default", Name: fmt.Sprintf("%s-7d4b9c6f5-%05d", name, j)},
				})
			}
		}))
	}
	return services, slices
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkFirstList converts the first list of 10,000 Services with ten endpoints each, and calls Take.
func BenchmarkFirstList(b *testing.B) {
	services, slices := cluster(10000)
	for b.Loop() {
		b.StopTimer()
		before := heap()
		s, v := NewStore(""), watchtest.NewView()
		b.StartTimer()
		load(b, s, services, slices)
		v.Take(s.Take())
		b.StopTimer()
		b.ReportMetric(float64(int64(heap())-int64(before))/(1<<20), "MiB-kept")
		if len(v.Services) != 10000 {
			b.Fatal(len(v.Services))
		}
		runtime.KeepAlive(s)
		b.StartTimer()
	}
}

// realisticNode returns a Node as the kubelet writes it: mostly images, conditions and managedFields.
func realisticNode(i int) *v1.Node {
	node := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("ip-10-%d-%d.eu-west-1.compute.internal", i/250, i%250),
			Labels: map[string]string{
				v1.LabelTopologyZone: fmt.Sprintf("eu-west-1%c", 'a'+i%3), v1.LabelTopologyRegion: "eu-west-1", v1.LabelHostname: "x", v1.LabelArchStable: "amd64",
			},
			ManagedFields: []metav1.ManagedFieldsEntry{{FieldsV1: metav1.NewFieldsV1(strings.Repeat("x", 3000))}},
		},
		Spec: v1.NodeSpec{PodCIDR: fmt.Sprintf("10.%d.%d.0/24", 128+i/250, i%250)},
		Status: v1.NodeStatus{Addresses: []v1.NodeAddress{
			{Type: v1.NodeInternalIP, Address: fmt.Sprintf("10.0.%d.%d", i/250, i%250+1)}, {Type: v1.NodeInternalIP, Address: fmt.Sprintf("fd00::%x", i+1)},
			{Type: v1.NodeExternalIP, Address: fmt.Sprintf("198.18.%d.%d", i/250, i%250+1)}, {Type: v1.NodeHostName, Address: "x"},
		}},
	}
	node.Spec.PodCIDRs = []string{node.Spec.PodCIDR, fmt.Sprintf("fd00:1:%x::/64", i)}
	for j := range 50 {
		node.Status.Images = append(node.Status.Images, v1.ContainerImage{Names: []string{fmt.Sprintf("registry.example/image-%d@sha256:%064d", j, j)}})
	}
	return node
}

// BenchmarkNodes converts the first list of 5,000 Nodes, and then one heartbeat of each Node.
func BenchmarkNodes(b *testing.B) {
	nodes := make([]k8sruntime.Object, 5000)
	for i := range nodes {
		nodes[i] = realisticNode(i)
	}
	for b.Loop() {
		b.StopTimer()
		before := heap()
		s, v := NewStore(""), watchtest.NewView()
		b.StartTimer()
		mustReplace(b, s, model.KindNode, nodes...)
		v.Take(s.Take())
		for _, node := range nodes {
			mustPut(b, s, node)
		}
		if got := s.Take(); got.Nodes != nil || len(v.Nodes) != len(nodes) {
			b.Fatalf("got %d Nodes, and heartbeats changed %d of them", len(v.Nodes), len(got.Nodes))
		}
		b.StopTimer()
		b.ReportMetric(float64(int64(heap())-int64(before))/float64(len(nodes)), "B-kept/node")
		runtime.KeepAlive(s)
		b.StartTimer()
	}
}

func load(b *testing.B, s *Store, services, slices []k8sruntime.Object) {
	b.Helper()
	for kind, list := range map[model.Kind][]k8sruntime.Object{model.KindService: services, model.KindEndpointSlice: slices} {
		mustReplace(b, s, kind, list...)
	}
}

func BenchmarkRelist(b *testing.B) {
	services, slices := cluster(10000)
	s := NewStore("")
	load(b, s, services, slices)
	s.Take()
	for b.Loop() {
		load(b, s, services, slices)
		if got := s.Take(); len(got.Services) > 0 {
			b.Fatal("a relist caused changes")
		}
	}
}

func BenchmarkOneEndpoint(b *testing.B) {
	services, slices := cluster(10000)
	s := NewStore("")
	load(b, s, services, slices)
	s.Take()
	versions := [2]*discoveryv1.EndpointSlice{slices[5000].(*discoveryv1.EndpointSlice), slices[5000].DeepCopyObject().(*discoveryv1.EndpointSlice)}
	versions[1].Endpoints[3].Conditions.Ready = ptr(false)
	id := model.ServiceID{Namespace: "default", Name: "service-05000"}
	i := 0
	for b.Loop() {
		i++
		mustPut(b, s, versions[i%2])
		if s.Take().Services[id] == nil {
			b.Fatal("the changed Service was not reported")
		}
	}
}
