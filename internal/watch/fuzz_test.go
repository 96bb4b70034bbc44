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

// FuzzManifest parses any file. The result is valid.
//
// Its seeds are single documents: the fuzzer minimizes every interesting input, which takes a minute for one of a kilobyte.
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
			for _, doc := range splitDocuments(file.Data) {
				if len(doc.text) <= maxSeed {
					f.Add(doc.text)
				}
			}
		}
	}
	f.Add([]byte("%YAML 1.2\n---\n# a\n---\nkind: A\n...\n--- b"))
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

// maxSeed is the size limit of a seed, in bytes.
const maxSeed = 256

// FuzzConvert converts any object. The result is valid.
func FuzzConvert(f *testing.F) {
	for kind, specs := range [][]string{
		{
			`"spec":{"clusterIP":"10.0.0.1","ports":[{"port":80}]}`,
			`"spec":{"clusterIPs":["10.0.0.1","fd::1"],"sessionAffinity":"ClientIP","ports":[{"name":"a","protocol":"UDP","port":53}]}`,
			`"spec":{"type":"NodePort","clusterIP":"10.0.0.1","externalIPs":["192.0.2.1"],"ports":[{"port":80,"nodePort":30080}]}`,
			`"spec":{"type":"LoadBalancer","clusterIP":"10.0.0.1","externalTrafficPolicy":"Local","healthCheckNodePort":32000,` +
				`"loadBalancerSourceRanges":["::/0"],"ports":[{"port":80}]},"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.9"}]}}`,
		},
		{
			`"addressType":"IPv4","ports":[{"port":80}],"endpoints":[{"addresses":["10.1.0.1"]}]`,
			`"addressType":"IPv6","endpoints":[{"addresses":["fd::1"],"nodeName":"n","hints":{"forZones":[{"name":"a"}]}}]`,
		},
		{`"spec":{"podCIDRs":["10.1.0.0/24"]},"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.1"}]}`},
	} {
		for _, spec := range specs {
			const meta = `{"metadata":{"name":"a","namespace":"b","labels":{"kubernetes.io/service-name":"c"}},`
			f.Add(uint8(kind), []byte(meta+spec+"}"))
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

// checkRecord checks what later packages rely on.
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
