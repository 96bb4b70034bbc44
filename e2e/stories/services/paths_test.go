package services

import (
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

func TestPaths(t *testing.T) {
	s := onStage(t)

	t.Run("cluster DNS over UDP and TCP", func(t *testing.T) {
		s.clusterDNS(t)
	})

	t.Run("client, ingress pod, Service, pod", func(t *testing.T) {
		ingress := s.node3.Pod(t, "ingress")
		t.Cleanup(func() { _ = ingress.Delete() })
		ingress.Serve(t, cluster.TCP, http.Target)
		front := s.service(t, `
metadata: {name: ingress}
spec: {type: LoadBalancer, externalTrafficPolicy: Local, ports: [{name: http, port: 80, targetPort: 8080}]}
---
endpoints: [{addresses: [ingress]}]`)
		back := s.service(t, `
metadata: {name: backend}
---
endpoints: [{addresses: [web-2]}]`)
		s.sendBalancerTo(t, front, s.node3)
		for _, f := range s.FamilyList() {
			reach(t, s.outside, http, front.AtBalancer(f, http), "ingress", s.outside.Addr(f))
			reach(t, ingress.Host, http, back.At(f, http), "web-2", ingress.Addr(f))
			reach(t, s.farClient.Host, http, front.AtBalancer(f, http), "ingress", s.farClient.Addr(f))
			reach(t, s.client.Host, http, front.AtBalancer(f, http), "ingress", s.client.Addr(f))
		}
	})

	t.Run("a cloud's load balancer sends to node ports on nodes with and without endpoints", func(t *testing.T) {
		whole := s.service(t, `
metadata: {name: cloud}
spec: {type: NodePort}
---
endpoints: [{addresses: [web-2]}]`)
		local := s.service(t, `
metadata: {name: cloud-local}
spec: {type: NodePort, externalTrafficPolicy: Local}
---
endpoints: [{addresses: [web-2]}]`)
		for _, f := range s.FamilyList() {
			for _, node := range s.Nodes {
				reach(t, s.outside, http, whole.AtNode(node, f), "web-2", node.Addr(f))
			}
			reach(t, s.outside, http, local.AtNode(s.node2, f), "web-2", s.outside.Addr(f))
			becomes(t, s.outside, http, local.AtNode(s.node3, f), cluster.Timeout)
		}
	})

	t.Run("pod to pod without a Service keeps its source", func(t *testing.T) {
		// proves: 85, 133
		for _, f := range s.FamilyList() {
			for _, p := range all {
				for _, to := range []*cluster.Pod{s.sameNode, s.otherNode} {
					reach(t, s.client.Host, p, to.At(f, p.Target), to.Name, s.client.Addr(f))
				}
			}
		}
	})

	t.Run("large requests", func(t *testing.T) {
		// proves: 76, 77, 102, 103
		s.largeRequests(t)
	})
}

func (s *stage) clusterDNS(t *testing.T) {
	for _, pod := range []*cluster.Pod{s.sameNode, s.otherNode} {
		pod.Serve(t, cluster.TCP, 5353)
	}
	svc := s.service(t, `
metadata: {name: kube-dns}
spec:
  ports:
  - {name: dns, protocol: UDP, port: 53, targetPort: 5353}
  - {name: dns-tcp, protocol: TCP, port: 53, targetPort: 5353}
---
endpoints: [{addresses: [web-1]}, {addresses: [web-2]}]`)
	for _, f := range s.FamilyList() {
		for _, p := range svc.Ports() {
			for _, from := range []*cluster.Host{s.client.Host, s.farClient.Host, s.node1.Host, s.node3.Host} {
				from.Await(t, patience, p.Protocol, svc.At(f, p))
				requests, each := 4, 2
				if cluster.Balancing() { // at random
					requests, each = 30, 1
				}
				if counts := from.Spread(t, requests, p.Protocol, svc.At(f, p), slowly); len(counts) != 2 || min(counts["web-1"], counts["web-2"]) < each {
					t.Errorf("%s from %s over %s: %v", f, from.Name, p.Protocol, counts)
				}
			}
		}
	}
}

func (s *stage) largeRequests(t *testing.T) {
	svc := s.service(t, `
metadata: {name: large}
spec: {type: NodePort}
---
endpoints: [{addresses: [web-2]}]`)
	for _, f := range s.FamilyList() {
		// Large datagrams from a process on the node are lost (see docs/known-limits.md).
		s.node1.Await(t, patience, cluster.TCP, svc.At(f, http))
		s.node1.GetLarge(t, cluster.TCP, svc.At(f, http), 200_000, slowly)
		for _, p := range []port{http, dns} {
			size := map[cluster.Protocol]int{cluster.TCP: 200_000, cluster.UDP: 8_000}[p.Protocol]
			for _, from := range []*cluster.Host{s.client.Host, s.farClient.Host} {
				from.Await(t, patience, p.Protocol, svc.At(f, p))
				from.GetLarge(t, p.Protocol, svc.At(f, p), size, slowly)
			}
			s.outside.Await(t, patience, p.Protocol, svc.AtNode(s.node3, f))
			s.outside.GetLarge(t, p.Protocol, svc.AtNode(s.node3, f), size, slowly)
		}
	}
}
