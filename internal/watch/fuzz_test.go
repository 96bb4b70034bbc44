package watch

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// The seeds are at most a hundred bytes. The fuzzer minimizes every interesting input, and the number of runs is quadratic in
// its length: with the files in testdata as seeds, it ran 19 inputs in 20 seconds.

// FuzzManifest parses any file. The result is valid.
func FuzzManifest(f *testing.F) {
	for _, seed := range []string{
		"{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {clusterIP: 10.0.0.1, ports: [{port: 1}]}}",
		"{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {x: 1}}",
		"{apiVersion: v1, kind: Node, metadata: {name: a}, spec: {podCIDRs: [x]}}",
		"{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, endpoints: []}",
		"{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: Node}]}",
		"{apiVersion: v1, kind: Endpoints}",
		"{apiVersion: apps/v1, kind: Deployment}",
		"%YAML 1.2\n---\n# a\n---\nkind: A\nkind: B\n...\n--- c",
	} {
		f.Add([]byte(seed))
	}
	reader := newManifestReader(newTestConverter())
	f.Fuzz(func(t *testing.T, data []byte) {
		m := reader.read("fuzz.yaml", data)
		for _, r := range m.records {
			checkRecord(t, r)
		}
		for _, p := range m.problems {
			checkProblem(t, p)
		}
	})
}

// FuzzConvert converts any object. The result is valid.
func FuzzConvert(f *testing.F) {
	for kind, seeds := range [][]string{
		{
			`{"spec":{"clusterIP":"10.0.0.1","ports":[{"port":80}]}}`,
			`{"spec":{"clusterIPs":["10.0.0.1","fd::1"],"sessionAffinity":"ClientIP","ports":[{"port":1}]}}`,
			`{"spec":{"type":"NodePort","externalIPs":["192.0.2.1"],"ports":[{"nodePort":30080}]}}`,
			`{"spec":{"type":"LoadBalancer","healthCheckNodePort":1,"loadBalancerSourceRanges":["::/0"]}}`,
			`{"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.9","ipMode":"VIP"}]}}}`,
		},
		{
			`{"addressType":"IPv4","ports":[{"port":80}],"endpoints":[{"addresses":["10.1.0.1"]}]}`,
			`{"addressType":"IPv6","endpoints":[{"nodeName":"n","hints":{"forZones":[{"name":"a"}]}}]}`,
		},
		{`{"spec":{"podCIDRs":["10.1.0.0/24"]}}`, `{"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.1"}]}}`},
	} {
		for _, seed := range seeds {
			f.Add(uint8(kind), []byte(seed))
		}
	}
	f.Fuzz(func(t *testing.T, kind uint8, data []byte) {
		meta := metav1.ObjectMeta{Name: "a", Namespace: "b", Labels: map[string]string{discoveryv1.LabelServiceName: "c"}}
		obj := []runtime.Object{&v1.Service{ObjectMeta: meta}, &discoveryv1.EndpointSlice{ObjectMeta: meta}, &v1.Node{ObjectMeta: meta}}[kind%3]
		if json.Unmarshal(data, obj) != nil {
			return
		}
		r, err := newTestConverter().convert(obj, "")
		if err != nil {
			t.Fatal(err)
		}
		checkRecord(t, r)
		// The conversion is deterministic, and the Store can add and remove the result.
		again, _ := newTestConverter().convert(obj, "")
		if !equalService(r.service, again.service) || !equalSlice(r.slice, again.slice) || !equalNode(r.node, again.node) {
			t.Errorf("two conversions differ: %+v, %+v", r, again)
		}
		s := newStore("")
		s.apply(r)
		s.Take()
		mustDelete(t, s, r.kind, r.Namespace, r.Name)
		s.Take()
		if len(s.services)+len(s.owners)+len(s.nodes)+len(s.problems) > 0 {
			t.Errorf("not removed: %v %v %v %v", s.services, s.owners, s.nodes, s.problems)
		}
	})
}

// checkRecord checks the properties that later packages rely on.
func checkRecord(t *testing.T, r *record) {
	t.Helper()
	if r.service != nil {
		checkService(t, r.service)
	}
	if r.slice != nil {
		checkSlice(t, r.slice)
	}
	if r.node != nil {
		checkAddresses(t, "node", r.node.Addresses)
		checkPrefixes(t, "pods", r.node.PodCIDRs)
	}
	for _, p := range r.problems {
		checkProblem(t, p)
	}
}

func checkService(t *testing.T, s *model.Service) {
	t.Helper()
	checkAddresses(t, "cluster", s.ClusterIPs)
	checkAddresses(t, "external", s.ExternalIPs)
	checkAddresses(t, "balancer", s.LoadBalancerIPs)
	checkPrefixes(t, "source ranges", s.SourceRanges)
	if len(s.ClusterIPs) > 2 || len(s.ClusterIPs) == 2 && inet.FamilyOf(s.ClusterIPs[0]) == inet.FamilyOf(s.ClusterIPs[1]) {
		t.Errorf("cluster addresses %v", s.ClusterIPs)
	}
	if !slices.IsSortedFunc(s.SourceRanges, netip.Prefix.Compare) {
		t.Errorf("source ranges %v are not sorted", s.SourceRanges)
	}
	if s.HealthCheckPort != 0 && !s.ExternalLocal {
		t.Errorf("health check port %d without external policy Local", s.HealthCheckPort)
	}
	if len(s.ClusterIPs) == 0 || len(s.Ports) == 0 || s.AffinityTimeout < 0 {
		t.Errorf("served: %+v", s)
	}
	checkPorts(t, s)
}

// checkPorts checks that names, ports and node ports are unique.
func checkPorts(t *testing.T, s *model.Service) {
	t.Helper()
	names, numbers, nodePorts := map[string]bool{}, map[model.ServicePort]bool{}, map[model.ServicePort]bool{}
	for _, p := range s.Ports {
		number := model.ServicePort{Protocol: p.Protocol, Port: p.Port}
		if p.Port == 0 || !validProtocol(p.Protocol) || names[p.Name] || numbers[number] || strings.ContainsAny(p.Name, " \n\"") {
			t.Errorf("port %+v of %+v", p, s.Ports)
		}
		nodePort := model.ServicePort{Protocol: p.Protocol, NodePort: p.NodePort}
		if p.NodePort != 0 && nodePorts[nodePort] {
			t.Errorf("node port %d twice in %+v", p.NodePort, s.Ports)
		}
		names[p.Name], numbers[number], nodePorts[nodePort] = true, true, true
	}
}

// checkAddresses checks that addresses are unique and valid for a Service.
func checkAddresses(t *testing.T, what string, addrs []netip.Addr) {
	t.Helper()
	seen := map[netip.Addr]bool{}
	for _, a := range addrs {
		if !a.IsValid() || a.Is4In6() || a.Zone() != "" || inet.CheckUnicast(a) != nil || seen[a] {
			t.Errorf("%s: address %v of %v", what, a, addrs)
		}
		seen[a] = true
	}
}

func checkPrefixes(t *testing.T, what string, prefixes []netip.Prefix) {
	t.Helper()
	for _, p := range prefixes {
		if !p.IsValid() || p != p.Masked() || p.Addr().Is4In6() {
			t.Errorf("%s: %v", what, p)
		}
	}
}

func checkSlice(t *testing.T, s *model.EndpointSlice) {
	t.Helper()
	for _, e := range s.Endpoints {
		if !e.Addr.IsValid() || e.Addr.Is4In6() || e.Addr.Zone() != "" || inet.FamilyOf(e.Addr) != s.Family {
			t.Errorf("endpoint %v in a slice of %v", e.Addr, s.Family)
		}
	}
	for _, p := range s.Ports {
		if p.Port == 0 || !validProtocol(p.Protocol) {
			t.Errorf("port %+v", p)
		}
	}
}

func checkProblem(t *testing.T, p model.Problem) {
	t.Helper()
	if p.Object == (model.ObjectRef{}) || p.Reason == "" || len(p.Value) > maxValue+len("...") || len(p.String()) > 1200 || !utf8.ValidString(p.String()) {
		t.Errorf("problem %+v", p)
	}
}

func validProtocol(p inet.Protocol) bool { return p == inet.TCP || p == inet.UDP || p == inet.SCTP }
