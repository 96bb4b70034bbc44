package compile_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// withNodePort returns a Service with a node port. More hours mean a younger Service.
func withNodePort(name, clusterIP string, port uint16, protocol inet.Protocol, hours int) *model.Service {
	svc := compiletest.Service(name, clusterIP, "10.244.0.1")
	svc.Created = compiletest.Epoch.Add(time.Duration(hours) * time.Hour)
	svc.Ports[0].Protocol, svc.Ports[0].NodePort, svc.Slices[0].Ports[0].Protocol = protocol, port, protocol
	return svc
}

func withHealthPort(name, clusterIP string, port uint16, hours int) *model.Service {
	svc := withNodePort(name, clusterIP, 0, inet.TCP, hours)
	svc.ExternalLocal, svc.HealthCheckPort = true, port
	return svc
}

// A load balancer must not send clients to a node whose only endpoints the Service cannot use.
func TestHealthChecksCountUsableEndpoints(t *testing.T) {
	for name, change := range map[string]func(*model.EndpointSlice){
		"usable": nil,
		"another family": func(s *model.EndpointSlice) {
			s.Family, s.Endpoints[0].Addr = inet.IPv6, netip.MustParseAddr("fd00:10:244::1")
		},
		"no ports": func(s *model.EndpointSlice) { s.Ports = nil },
	} {
		svc := withHealthPort("web", "10.96.0.1", 32000, 0)
		svc.Slices[0].Endpoints[0].Node = compiletest.Node
		want := 1
		if change != nil {
			change(svc.Slices[0])
			want = 0
		}
		c := compiletest.Cluster(compiletest.Config(), services{svc.ID: svc}, home)
		if got := c.HealthPort(svc.ID); got.Local != want || got.Port != 32000 {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// toldOnly reports whether the Service has exactly one Problem, with this field and reason. If the reason is empty, it
// must have none.
func toldOnly(c *compile.Cluster, id model.ServiceID, field, reason string) bool {
	ps := c.Problems(id)
	if reason == "" {
		return len(ps) == 0
	}
	return len(ps) == 1 && ps[0].Field == field && strings.Contains(ps[0].Reason, reason) && ps[0].Value != "" && ps[0].Remedy != ""
}

// I17: a port that the node needs never becomes a node port or health check port, even outside the usual range. The other parts of the
// Service are served.
func TestNodePortsThatTheNodeNeeds(t *testing.T) {
	cfg := compiletest.Config()
	cfg.AgentPorts = []uint16{10266, 10249}
	cfg.NodePorts.CIDRs = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("127.0.0.1/32")}
	for _, mode := range []compile.AtNode{compile.AtNodeGuarded, compile.AtNodeAll, compile.AtNodeNone} {
		cfg.ExternalIPs.AtNode = mode
		c := compiletest.Cluster(cfg, nil, compiletest.At("192.0.2.1", "192.0.2.9"))
		c.SetAPIServer([]netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:7443"), netip.MustParseAddrPort("203.0.113.1:8443")}, touched())
		for port, use := range map[uint16]string{
			22: "ssh", 2379: "etcd", 2380: "etcd", 6443: "the API server", 7443: "the API server", 8443: "", 10249: "the agent's health checks",
			10250: "the kubelet", 10255: "", 10256: "the health checks of kube-ipvs", 10257: "the controller manager", 10259: "the scheduler",
			10266: "the agent's health checks", 30080: "",
		} {
			reason := "this node needs the port at its own addresses for " + use
			if mode == compile.AtNodeAll || use == "" {
				reason = ""
			}
			checkNodePort(t, c, port, reason)
			probed := withHealthPort("web", "10.96.0.1", port, 0)
			c.Update(services{probed.ID: probed}, touched())
			if h := c.HealthPort(probed.ID); (h.Port == port) != (reason == "") || !toldOnly(c, probed.ID, "spec.healthCheckNodePort", reason) {
				t.Errorf("health check port %d, mode %d: got %v, problems %v", port, mode, h, c.Problems(probed.ID))
			}
		}
		udp := withNodePort("web", "10.96.0.1", 22, inet.UDP, 0)
		if c.Update(services{udp.ID: udp}, touched()); !toldOnly(c, udp.ID, "", "") {
			t.Errorf("got problems %v for UDP", c.Problems(udp.ID))
		}
	}
}

// checkNodePort checks that a node port is served at every address of the node or, if a reason is given, at none.
func checkNodePort(t *testing.T, c *compile.Cluster, port uint16, reason string) {
	t.Helper()
	svc := withNodePort("web", "10.96.0.1", port, inet.TCP, 0)
	c.Update(services{svc.ID: svc}, touched())
	if !toldOnly(c, svc.ID, "spec.ports[0].nodePort", reason) {
		t.Errorf("node port %d has problems %v", port, c.Problems(svc.ID))
	}
	for _, addr := range []string{"192.0.2.1", "192.0.2.9"} {
		if isServed(c, addr, port) != (reason == "") {
			t.Errorf("node port %d at %s is served: %t", port, addr, reason != "")
		}
	}
	if at := c.LoopbackPorts(svc.ID); (len(at) > 0) != (reason == "") || !isServed(c, "10.96.0.1", 80) {
		t.Errorf("node port %d is served at loopback addresses: %v; the ClusterIP is served: %t", port, at, isServed(c, "10.96.0.1", 80))
	}
}

// A node port is refused as soon as the agent learns that the API server uses the port at an address of the node. It is served again after the API
// server has moved.
func TestNodePortOfAnAPIServer(t *testing.T) {
	web, probed := withNodePort("web", "10.96.0.1", 7443, inet.TCP, 0), withHealthPort("probed", "10.96.0.2", 7444, 0)
	other := compiletest.Service("other", "10.96.0.3", "10.244.0.1")
	c := scratch(services{web.ID: web, probed.ID: probed, other.ID: other})
	for _, step := range []struct {
		contacts []string
		served   bool
	}{
		{nil, true}, {[]string{"192.0.2.1:7443", "192.0.2.1:7444"}, false}, {[]string{"203.0.113.7:7443"}, true},
		{[]string{"192.0.2.1:9999"}, true}, {[]string{"192.0.2.1:7443", "192.0.2.1:7444"}, false}, {[]string{"192.0.2.1:9999"}, true},
	} {
		var contacts []netip.AddrPort
		for _, at := range step.contacts {
			contacts = append(contacts, netip.MustParseAddrPort(at))
		}
		if ids := c.SetAPIServer(contacts, touched()); slices.Contains(ids, other.ID) {
			t.Errorf("compiled %v", ids)
		}
		if isServed(c, "192.0.2.1", 7443) != step.served || (c.HealthPort(probed.ID).Port != 0) != step.served {
			t.Errorf("API server at %v: got health check %v, problems %v and %v", step.contacts, c.HealthPort(probed.ID), c.Problems(web.ID), c.Problems(probed.ID))
		}
	}
	api := kubernetesService("192.0.2.1") // the endpoints of this Service have port 8080
	web.Ports[0].NodePort = 8080
	c.Update(services{web.ID: web}, touched())
	if c.Update(services{api.ID: api}, touched()); isServed(c, "192.0.2.1", 8080) {
		t.Error("the port of default/kubernetes is served")
	}
	for _, port := range []uint16{8081, 8080} { // the same address
		moved := kubernetesService("192.0.2.1")
		for i := range moved.Slices[0].Ports {
			moved.Slices[0].Ports[i].Port = port
		}
		if c.Update(services{api.ID: moved}, touched()); isServed(c, "192.0.2.1", 8080) != (port != 8080) {
			t.Errorf("while default/kubernetes has port %d, port 8080 is served: %t", port, port == 8080)
		}
	}
}

// A health check port cannot also be a TCP node port, and only one Service gets it: the oldest, or the first by name. The next Service gets the port
// once it is free.
func TestHealthCheckPortsCollide(t *testing.T) {
	const port = 32000
	probed := withHealthPort("probed", "10.96.0.1", port, 1)
	for name, c := range map[string]struct {
		other  *model.Service
		reason string // empty if probed has the port
	}{
		"a younger node port":             {withNodePort("x", "10.96.0.2", port, inet.TCP, 2), "the port is a node port of Service default/x"},
		"a younger node port over IPv6":   {withNodePort("x", "fd00:10:96::2", port, inet.TCP, 2), "the port is a node port of Service default/x"},
		"a UDP node port":                 {withNodePort("x", "10.96.0.2", port, inet.UDP, 0), ""},
		"another node port":               {withNodePort("x", "10.96.0.2", port+1, inet.TCP, 0), ""},
		"an older health check port":      {withHealthPort("x", "10.96.0.2", port, 0), "Service default/x has the better claim to the same healthCheckNodePort"},
		"a health check port, first name": {withHealthPort("a", "10.96.0.2", port, 1), "Service default/a has the better claim to the same healthCheckNodePort"},
		"a younger health check port":     {withHealthPort("x", "10.96.0.2", port, 2), ""},
	} {
		checkCollision(t, name, probed, c.other, c.reason)
	}
	both := withHealthPort("both", "10.96.0.1", port, 0)
	both.Ports[0].NodePort = port
	c := scratch(services{both.ID: both})
	if ps := c.Problems(both.ID); c.HealthPort(both.ID).Port != 0 || !isServed(c, "192.0.2.1", port) || len(ps) != 1 || !strings.Contains(ps[0].Reason, "also its node port") {
		t.Errorf("with both ports in one Service, got %v and problems %v", c.HealthPort(both.ID), ps)
	}
}

func checkCollision(t *testing.T, name string, probed, other *model.Service, reason string) {
	t.Helper()
	c := scratch(services{probed.ID: probed})
	expect := func(when, reason string) {
		t.Helper()
		want := compile.HealthPort{Port: probed.HealthCheckPort, Local: 1}
		if reason != "" {
			want = compile.HealthPort{}
		}
		if got := c.HealthPort(probed.ID); got != want || !toldOnly(c, probed.ID, "spec.healthCheckNodePort", reason) {
			t.Errorf("%s, %s: got %v, problems %v", name, when, got, c.Problems(probed.ID))
		}
	}
	expect("alone", "")
	c.Update(services{other.ID: other}, touched())
	expect("with the other", reason)
	lost := ""
	if other.HealthCheckPort == probed.HealthCheckPort && reason == "" {
		lost = "Service default/probed has the better claim"
	}
	if got := c.HealthPort(other.ID).Port; !toldOnly(c, other.ID, "spec.healthCheckNodePort", lost) || lost != "" && got != 0 {
		t.Errorf("%s: the other Service has the health check port %d and the problems %v", name, got, c.Problems(other.ID))
	}
	some := strings.Contains(strings.Join(members(c.Want()), "\n"), "HEALTH")
	if want := reason == "" || other.HealthCheckPort != 0; some != want {
		t.Errorf("%s: the sets have entries for a health check port: %t", name, some)
	}
	c.Update(services{other.ID: nil}, touched())
	expect("without the other", "")
}
