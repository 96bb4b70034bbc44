package watchtest

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// Check checks the properties of an object that later packages rely on. All arguments can be nil.
func Check(t *testing.T, service *model.Service, slice *model.EndpointSlice, node *model.Node, problems []model.Problem) {
	t.Helper()
	if service != nil {
		checkService(t, service)
	}
	if slice != nil {
		checkSlice(t, slice)
	}
	if node != nil {
		checkAddresses(t, "node", node.Addresses)
		checkPrefixes(t, "pods", node.PodCIDRs)
	}
	for _, p := range problems {
		CheckProblem(t, p)
	}
}

func checkService(t *testing.T, s *model.Service) {
	t.Helper()
	checkAddresses(t, "cluster", s.ClusterIPs)
	checkAddresses(t, "external", s.ExternalIPs)
	checkAddresses(t, "balancer", s.LoadBalancerIPs)
	checkPrefixes(t, "source ranges", s.SourceRanges)
	if len(s.ClusterIPs) > 2 || len(s.ClusterIPs) == 2 && inet.FamilyOf(s.ClusterIPs[0]) == inet.FamilyOf(s.ClusterIPs[1]) {
		t.Errorf("more than one cluster address of a family: %v", s.ClusterIPs)
	}
	if !slices.IsSortedFunc(s.SourceRanges, netip.Prefix.Compare) {
		t.Errorf("source ranges %v are not sorted", s.SourceRanges)
	}
	if s.HealthCheckPort != 0 && !s.ExternalLocal {
		t.Errorf("the health check port is %d, but the external policy is not Local", s.HealthCheckPort)
	}
	if len(s.ClusterIPs) == 0 || len(s.Ports) == 0 || s.AffinityTimeout < 0 {
		t.Errorf("invalid Service: %+v", s)
	}
	checkPorts(t, s)
}

func checkPorts(t *testing.T, s *model.Service) {
	t.Helper()
	names, numbers, nodePorts := map[string]bool{}, map[model.ServicePort]bool{}, map[model.ServicePort]bool{}
	for _, p := range s.Ports {
		number := model.ServicePort{Protocol: p.Protocol, Port: p.Port}
		if p.Port == 0 || !validProtocol(p.Protocol) || names[p.Name] || numbers[number] || strings.ContainsAny(p.Name, " \n\"") {
			t.Errorf("invalid or duplicate port %+v in %+v", p, s.Ports)
		}
		nodePort := model.ServicePort{Protocol: p.Protocol, NodePort: p.NodePort}
		if p.NodePort != 0 && nodePorts[nodePort] {
			t.Errorf("duplicate node port %d in %+v", p.NodePort, s.Ports)
		}
		names[p.Name], numbers[number], nodePorts[nodePort] = true, true, true
	}
}

func checkAddresses(t *testing.T, what string, addrs []netip.Addr) {
	t.Helper()
	seen := map[netip.Addr]bool{}
	for _, a := range addrs {
		if !a.IsValid() || a.Is4In6() || a.Zone() != "" || inet.CheckUnicast(a) != nil || seen[a] {
			t.Errorf("%s: invalid or duplicate address %v in %v", what, a, addrs)
		}
		seen[a] = true
	}
}

func checkPrefixes(t *testing.T, what string, prefixes []netip.Prefix) {
	t.Helper()
	for _, p := range prefixes {
		if !p.IsValid() || p != p.Masked() || p.Addr().Is4In6() {
			t.Errorf("%s: invalid prefix %v", what, p)
		}
	}
}

func checkSlice(t *testing.T, s *model.EndpointSlice) {
	t.Helper()
	for _, e := range s.Endpoints {
		if !e.Addr.IsValid() || e.Addr.Is4In6() || e.Addr.Zone() != "" || inet.FamilyOf(e.Addr) != s.Family {
			t.Errorf("invalid endpoint %v in an %v slice", e.Addr, s.Family)
		}
	}
	for _, p := range s.Ports {
		if p.Port == 0 || !validProtocol(p.Protocol) {
			t.Errorf("invalid port %+v", p)
		}
	}
}

// maxValue is the maximum length of the value in a Problem, in bytes.
const maxValue = 64

// CheckProblem checks that a Problem can become an Event.
func CheckProblem(t *testing.T, p model.Problem) {
	t.Helper()
	if p.Object == (model.ObjectRef{}) || p.Reason == "" || len(p.Value) > maxValue+len("...") || len(p.String()) > 1200 || !utf8.ValidString(p.String()) {
		t.Errorf("invalid problem %+v", p)
	}
}

func validProtocol(p inet.Protocol) bool { return p == inet.TCP || p == inet.UDP || p == inet.SCTP }
