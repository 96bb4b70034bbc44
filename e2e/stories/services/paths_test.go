package services

import (
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// TestPaths walks the paths that people draw on whiteboards.
func TestPaths(t *testing.T) {
	s := onStage(t)

	t.Run("cluster DNS over UDP and TCP", func(t *testing.T) {
		for _, pod := range []*cluster.Pod{s.sameNode, s.otherNode} {
			pod.Serve(t, cluster.TCP, 5353)
		}
		svc := s.define("kube-dns", podEndpoint(s.sameNode), podEndpoint(s.otherNode))
		svc.ports = []port{
			{name: "dns", protocol: cluster.UDP, port: 53, target: 5353},
			{name: "dns-tcp", protocol: cluster.TCP, port: 53, target: 5353},
		}
		s.create(t, svc)
		for _, f := range s.FamilyList() {
			for _, p := range svc.ports {
				for _, from := range []*cluster.Host{s.client.Host, s.farClient.Host, s.node1.Host, s.node3.Host} {
					from.Await(t, patience, p.protocol, svc.at(f, p))
					if counts := from.Spread(t, 4, p.protocol, svc.at(f, p), slowly); counts["web-1"] != 2 || counts["web-2"] != 2 {
						t.Errorf("%s from %s over %s: %v", f, from.Name, p.protocol, counts)
					}
				}
			}
		}
	})

	t.Run("client, ingress pod, Service, pod", func(t *testing.T) {
		ingress := s.node3.Pod(t, "ingress")
		t.Cleanup(func() { _ = ingress.Delete() })
		ingress.Serve(t, cluster.TCP, http.target)
		front := s.defineBalancer("ingress", podEndpoint(ingress)).with(externalLocal)
		front.ports = []port{http}
		back := s.define("backend", podEndpoint(s.otherNode))
		s.create(t, front)
		s.create(t, back)
		s.sendBalancerTo(t, front, s.node3)
		for _, f := range s.FamilyList() {
			reach(t, s.outside, http, front.atBalancer(f, http), "ingress", s.outside.Addr(f))
			reach(t, ingress.Host, http, back.at(f, http), "web-2", ingress.Addr(f))
			// A pod that uses the front door meets the ingress pod on its own node, or from elsewhere.
			reach(t, s.farClient.Host, http, front.atBalancer(f, http), "ingress", s.farClient.Addr(f))
			reach(t, s.client.Host, http, front.atBalancer(f, http), "ingress", s.client.Addr(f))
		}
	})

	t.Run("a cloud's load balancer sends to node ports on nodes with and without endpoints", func(t *testing.T) {
		whole := s.defineNodePort("cloud", podEndpoint(s.otherNode))
		local := s.defineNodePort("cloud-local", podEndpoint(s.otherNode)).with(externalLocal)
		s.create(t, whole)
		s.create(t, local)
		for _, f := range s.FamilyList() {
			for _, node := range s.Nodes {
				reach(t, s.outside, http, whole.atNode(node, f), "web-2", node.Addr(f))
			}
			reach(t, s.outside, http, local.atNode(s.node2, f), "web-2", s.outside.Addr(f))
			becomes(t, s.outside, http, local.atNode(s.node3, f), cluster.Timeout)
		}
	})

	t.Run("pod to pod without a Service keeps its source", func(t *testing.T) {
		// proves: 85, 133
		for _, f := range s.FamilyList() {
			for _, p := range all {
				for _, to := range []*cluster.Pod{s.sameNode, s.otherNode} {
					reach(t, s.client.Host, p, to.At(f, p.target), to.Name, s.client.Addr(f))
				}
			}
		}
	})

	t.Run("large requests", func(t *testing.T) {
		// proves: 76, 77, 102, 103
		svc := s.defineNodePort("large", podEndpoint(s.otherNode))
		s.create(t, svc)
		for _, f := range s.FamilyList() {
			// Not UDP: docs/known-limits.md.
			s.node1.Await(t, patience, cluster.TCP, svc.at(f, http))
			s.node1.GetLarge(t, cluster.TCP, svc.at(f, http), 200_000, slowly)
			for _, p := range []port{http, dns} {
				size := map[cluster.Protocol]int{cluster.TCP: 200_000, cluster.UDP: 8_000}[p.protocol]
				for _, from := range []*cluster.Host{s.client.Host, s.farClient.Host} {
					from.Await(t, patience, p.protocol, svc.at(f, p))
					from.GetLarge(t, p.protocol, svc.at(f, p), size, slowly)
				}
				s.outside.Await(t, patience, p.protocol, svc.atNode(s.node3, f))
				s.outside.GetLarge(t, p.protocol, svc.atNode(s.node3, f), size, slowly)
			}
		}
	})
}
