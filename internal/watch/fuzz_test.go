package watch

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/tools/txtar"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// FuzzManifest: whatever a file holds, it is read without harm, and what comes out of it is valid.
func FuzzManifest(f *testing.F) {
	paths, err := filepath.Glob("testdata/manifests/*.txtar")
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range txtar.Parse(data).Files {
			f.Add(file.Data)
		}
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

// FuzzConvert: whatever the API server lets through is parsed without harm, and what comes out of it is valid.
func FuzzConvert(f *testing.F) {
	for kind, objs := range [][]runtime.Object{
		{testService("web", nil), testService("web", everythingExternal), testService("web", everythingWrong)},
		{testSlice("web-1", "web", nil), testSlice("web-1", "web", func(s *discoveryv1.EndpointSlice) {
			s.Endpoints[0].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "a"}}, ForNodes: []discoveryv1.ForNode{{Name: "n1"}}}
		})},
		{testNode()},
	} {
		for _, obj := range objs {
			data, err := json.Marshal(obj)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(uint8(kind), data)
		}
	}
	f.Fuzz(func(t *testing.T, kind uint8, data []byte) {
		obj := []runtime.Object{&v1.Service{}, &discoveryv1.EndpointSlice{}, &v1.Node{}}[kind%3]
		if json.Unmarshal(data, obj) != nil {
			return
		}
		r, err := newTestConverter().convert(obj, "")
		if err != nil {
			t.Fatal(err)
		}
		checkRecord(t, r)
		// What came out once comes out again, and the Store can hold it and let it go.
		again, _ := newTestConverter().convert(obj, "")
		if !equalService(r.service, again.service) || !equalSlice(r.slice, again.slice) || !equalNode(r.node, again.node) {
			t.Errorf("two conversions differ: %+v, %+v", r, again)
		}
		s := NewStore()
		s.apply(r)
		s.Take()
		s.Delete(r.kind, r.Namespace, r.Name)
		s.Take()
		if len(s.services)+len(s.owners)+len(s.nodes)+len(s.problems) > 0 {
			t.Errorf("left behind: %v %v %v %v", s.services, s.owners, s.nodes, s.problems)
		}
	})
}

// checkRecord asserts what the packages behind this one rely on.
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
		t.Errorf("health check port %d, and nodes do not differ", s.HealthCheckPort)
	}
	if len(s.ClusterIPs) == 0 || len(s.Ports) == 0 || s.AffinityTimeout < 0 {
		t.Errorf("served: %+v", s)
	}
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

// checkAddresses: each once, and of a kind that packets for a Service can carry.
func checkAddresses(t *testing.T, what string, addrs []netip.Addr) {
	t.Helper()
	seen := map[netip.Addr]bool{}
	for _, a := range addrs {
		if !a.IsValid() || a.Is4In6() || a.Zone() != "" || inet.Unfit(a) != "" || seen[a] {
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
	if p.Object == "" || p.Message == "" || len(p.Value) > maxValue+len("...") || len(p.String()) > 1200 || !utf8.ValidString(p.String()) {
		t.Errorf("problem %+v", p)
	}
}

func validProtocol(p inet.Protocol) bool { return p == inet.TCP || p == inet.UDP || p == inet.SCTP }
