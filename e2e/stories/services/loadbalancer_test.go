package services

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

func (s *stage) sendBalancerTo(t *testing.T, svc service, node *cluster.Node) {
	t.Helper()
	for _, ip := range svc.Balancer() {
		s.RouteVia(t, ip, node)
		t.Cleanup(func() {
			if _, err := s.Router.Run("ip", "route", "del", ip); err != nil {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestLoadBalancer(t *testing.T) {
	s := onStage(t)

	t.Run("reached from pods, nodes and outside", func(t *testing.T) {
		svc := s.service(t, `
metadata: {name: lb}
spec: {type: LoadBalancer}
---
endpoints: [{addresses: [web-2]}]`)
		s.everyPort(t, func(t *testing.T, f cluster.Family, p port) {
			at := svc.AtBalancer(f, p)
			reach(t, s.outside, p, at, "web-2", s.node1.Addr(f))
			reach(t, s.client.Host, p, at, "web-2", s.node1.Addr(f))
			reach(t, s.farClient.Host, p, at, "web-2", s.node3.Addr(f))
			reach(t, s.node1.Host, p, at, "web-2", s.node1.Addr(f))
			reach(t, s.outside, p, svc.AtNode(s.node3, f), "web-2", s.node3.Addr(f))
		})
	})

	t.Run("an address of mode Proxy goes through the load balancer, a host name is ignored", func(t *testing.T) {
		s.modeProxy(t)
	})

	t.Run("without node ports, then with them", func(t *testing.T) {
		// proves: 120
		svc := s.service(t, `
metadata: {name: lb-portless}
spec: {type: LoadBalancer, allocateLoadBalancerNodePorts: false}
---
endpoints: [{addresses: [web-2]}]`)
		withPorts := svc.With("spec: {allocateLoadBalancerNodePorts: true}")
		for _, f := range s.FamilyList() {
			reach(t, s.outside, http, svc.AtBalancer(f, http), "web-2", s.node1.Addr(f))
			s.outside.MustRefuse(t, cluster.TCP, withPorts.AtNode(s.node1, f), slowly)
		}
		s.change(t, withPorts)
		for _, f := range s.FamilyList() {
			reach(t, s.outside, http, svc.AtBalancer(f, http), "web-2", s.node1.Addr(f))
			reach(t, s.outside, http, withPorts.AtNode(s.node1, f), "web-2", s.node1.Addr(f))
		}
	})

	t.Run("source ranges", func(t *testing.T) {
		// proves: 114
		s.sourceRanges(t)
	})
	t.Run("health check port", func(t *testing.T) {
		// proves: 37, 126, 127
		s.healthChecks(t)
	})
}

// sourceRanges follows the upstream Kubernetes test.
func (s *stage) sourceRanges(t *testing.T) {
	svc := s.service(t, `
metadata: {name: lb-ranges}
spec: {type: LoadBalancer}
---
endpoints: [{addresses: [web-2]}]`)
	pod, far, outside := s.client.Host, s.farClient.Host, s.outside
	for _, step := range []struct {
		name, ranges string
		may, mayNot  []*cluster.Host
	}{
		{"no ranges", "null", []*cluster.Host{pod, far, outside, s.node1.Host}, nil},
		{"one pod and its node", "[client, node-1]", []*cluster.Host{pod, s.node1.Host}, []*cluster.Host{far, outside, s.node3.Host}},
		{"two pods", "[client, far-client]", []*cluster.Host{pod, far}, []*cluster.Host{outside, s.node1.Host}},
		{"a range around a client", `[198.51.100.0/25, "2001:db8:51::/64"]`, []*cluster.Host{outside}, []*cluster.Host{pod}},
		{"ranges without a client", `[192.0.2.1/32, "2001:db8:99::1/128"]`, nil, []*cluster.Host{pod, far, outside}},
		{"ranges without a client, and all addresses", `[192.0.2.1/32, 0.0.0.0/0, "::/0"]`, []*cluster.Host{pod, far, outside}, nil},
		{"one client", "[client-1]", []*cluster.Host{outside}, []*cluster.Host{pod}},
		{"no ranges again", "null", []*cluster.Host{pod, far, outside, s.node3.Host}, nil},
	} {
		t.Run(step.name, func(t *testing.T) {
			s.change(t, svc.With("spec: {loadBalancerSourceRanges: "+step.ranges+"}"))
			for _, f := range s.FamilyList() {
				for _, host := range step.may {
					becomes(t, host, http, svc.AtBalancer(f, http), cluster.Answered)
					becomes(t, host, dns, svc.AtBalancer(f, dns), cluster.Answered)
				}
				for _, host := range step.mayNot {
					eventuallyUnserved(t, host, http, svc.AtBalancer(f, http))
				}
				// Source ranges apply only to the load balancer's addresses.
				becomes(t, far, http, svc.At(f, http), cluster.Answered)
				becomes(t, outside, http, svc.AtNode(s.node1, f), cluster.Answered)
			}
		})
	}
}

type healthAnswer struct {
	Service             struct{ Namespace, Name string }
	LocalEndpoints      int
	ServiceProxyHealthy bool
}

func (s *stage) healthy(t *testing.T, svc service, port uint16, node *cluster.Node, endpoints int) {
	t.Helper()
	status := map[bool]int{true: 200, false: 503}[endpoints > 0]
	for _, f := range s.FamilyList() {
		cluster.Eventually(t, patience, fmt.Sprintf("health check of %s at %s: %d endpoints", svc.Name, node.Name, endpoints), func() error {
			page, err := s.outside.HTTPGet("http://" + node.At(f, port) + "/healthz")
			if err != nil {
				return err
			}
			var answer healthAnswer
			if err := json.Unmarshal([]byte(page.Body), &answer); err != nil {
				return fmt.Errorf("%q: %w", page.Body, err)
			}
			want := healthAnswer{LocalEndpoints: endpoints, ServiceProxyHealthy: true}
			want.Service.Namespace, want.Service.Name = "default", svc.Name
			weight := page.Header.Get("X-Load-Balancing-Endpoint-Weight")
			if page.Status != status || answer != want || weight != fmt.Sprint(endpoints) {
				return fmt.Errorf("status %d, want %d; weight %s; %+v", page.Status, status, weight, answer)
			}
			return nil
		})
	}
}

func (s *stage) healthChecks(t *testing.T) {
	const check = 32001
	svc := s.service(t, `
metadata: {name: lb-health}
spec: {type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 32001}
---
endpoints: [{addresses: [web-1]}, {addresses: [web-2]}]`)
	s.healthy(t, svc, check, s.node1, 1)
	s.healthy(t, svc, check, s.node2, 1)
	s.healthy(t, svc, check, s.node3, 0)

	extra := s.node3.Pod(t, "health-3")
	t.Cleanup(func() { _ = extra.Delete() })
	s.apply(t, svc.With("endpoints: [{addresses: [web-1]}, {addresses: [web-2]}, {addresses: [health-3]}]").SlicesYAML())
	for _, node := range s.Nodes {
		s.healthy(t, svc, check, node, 1)
	}

	// node-1 has only a terminating endpoint. The health check fails, but clients that still arrive are served.
	s.apply(t, svc.With(`
endpoints:
- {addresses: [web-1], conditions: {ready: false, serving: true, terminating: true}}
- {addresses: [web-2]}`).SlicesYAML())
	s.healthy(t, svc, check, s.node1, 0)
	s.healthy(t, svc, check, s.node3, 0)
	for _, f := range s.FamilyList() {
		reach(t, s.outside, http, svc.AtNode(s.node1, f), "web-1", s.outside.Addr(f))
	}
	s.remove(t, svc.YAML())
	for _, f := range s.FamilyList() {
		becomes(t, s.outside, http, s.node1.At(f, check), cluster.Refused)
	}
}

func (s *stage) modeProxy(t *testing.T) {
	const proxy = "203.0.113.250"
	s.otherOutside.AddAddr(t, "eth0", proxy)
	s.otherOutside.Serve(t, cluster.TCP, http.Number, cluster.As("load-balancer"))
	s.Router.MustRun(t, "ip", "route", "add", proxy+"/32", "via", s.otherOutside.V4.String())
	t.Cleanup(func() { _, _ = s.Router.Run("ip", "route", "del", proxy+"/32") })
	svc := s.service(t, `
metadata: {name: lb-proxy}
spec: {type: LoadBalancer}
status:
  loadBalancer:
    ingress:
    - {ip: 203.0.113.249, ipMode: VIP}
    - {ip: 203.0.113.250, ipMode: Proxy}
    - {hostname: lb.example.org}
---
endpoints: [{addresses: [web-2]}]`)
	reach(t, s.client.Host, http, svc.AtBalancer(cluster.V4, http), "web-2", s.node1.V4)
	if got := s.client.Get(t, cluster.TCP, proxy+":80", slowly); got.Server != "load-balancer" {
		t.Errorf("a pod reached %s through an address of mode Proxy", got.Server)
	}
}
