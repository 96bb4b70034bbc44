package services

import (
	"net/netip"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

func TestPolicies(t *testing.T) {
	s := onStage(t)

	t.Run("internal Local: endpoints of the same node, or none", func(t *testing.T) {
		// proves: 33, 34
		svc := s.service(t, `
metadata: {name: itp}
spec: {internalTrafficPolicy: Local}
---
endpoints: [{addresses: [web-1]}]`)
		s.everyPort(t, func(t *testing.T, f cluster.Family, p port) {
			reach(t, s.client.Host, p, svc.At(f, p), "web-1", s.client.Addr(f))
			reach(t, s.node1.Host, p, svc.At(f, p), "web-1", s.node1.Addr(f))
			eventuallyUnserved(t, s.farClient.Host, p, svc.At(f, p))
			eventuallyUnserved(t, s.node3.Host, p, svc.At(f, p))
		})
	})

	t.Run("internal Local: endpoints on the node's network", func(t *testing.T) {
		// proves: 35
		s.internalLocalHost(t)
	})

	// kube-proxy uses endpoints on other nodes for the ClusterIP if the Service has a node port or load balancer.
	t.Run("internal Local with a load balancer: no endpoint on another node, external clients are served", func(t *testing.T) {
		svc := s.service(t, `
metadata: {name: itp-lb}
spec: {type: LoadBalancer, internalTrafficPolicy: Local}
---
endpoints: [{addresses: [web-1]}]`)
		for _, f := range s.FamilyList() {
			reach(t, s.client.Host, http, svc.At(f, http), "web-1", s.client.Addr(f))
			eventuallyUnserved(t, s.farClient.Host, http, svc.At(f, http))
			reach(t, s.outside, http, svc.AtNode(s.node3, f), "web-1", s.node3.Addr(f))
		}
	})

	t.Run("external Local keeps the client's address", func(t *testing.T) {
		// proves: 36, 125, 128
		s.externalLocal(t)
	})

	// kube-proxy does not serve clients on the node itself. It sends outside clients to a pod on another node, whose replies have
	// the wrong source (kubernetes/kubernetes#93456).
	t.Run("external Local without a local endpoint: inside served, outside silent, issue 93456", func(t *testing.T) {
		// proves: 145
		s.noLocalEndpoint(t)
	})

	t.Run("external Local without a local endpoint: the node itself, at an address that no other node knows", func(t *testing.T) {
		s.unknownAddress(t)
	})

	t.Run("external Local follows the endpoints and changes of the policy", func(t *testing.T) {
		// proves: 48
		s.changingPolicy(t)
	})
	t.Run("terminating endpoints serve when no other is left", func(t *testing.T) {
		// proves: 38, 39, 40, 41
		s.terminating(t)
	})
	t.Run("unready and terminating endpoints, published or not", func(t *testing.T) {
		// proves: 20, 21, 22
		s.published(t)
	})
}

func (s *stage) requests(pod *cluster.Pod) int {
	n := 0
	for _, server := range s.servers[pod] {
		n += server.Requests()
	}
	return n
}

func (s *stage) changingPolicy(t *testing.T) {
	const check = 32002
	everywhere := s.define(`
metadata: {name: etp-changing}
spec: {type: LoadBalancer}
---
endpoints: [{addresses: [web-1]}]`)
	local := everywhere.With("spec: {externalTrafficPolicy: Local, healthCheckNodePort: 32002}")
	s.create(t, local)
	for range 2 {
		s.healthy(t, local, check, s.node1, 1)
		s.healthy(t, local, check, s.node2, 0)
		s.healthy(t, local, check, s.node3, 0)
		for _, f := range s.FamilyList() {
			settles(t, s.outside, http, local.AtNode(s.node1, f), "web-1", s.outside.Addr(f))
			becomes(t, s.outside, http, local.AtNode(s.node3, f), cluster.Timeout)
			reach(t, s.farClient.Host, http, local.AtNode(s.node3, f), "web-1", s.farClient.Addr(f))
		}

		s.change(t, everywhere)
		for _, f := range s.FamilyList() {
			for _, node := range s.Nodes {
				becomes(t, s.outside, http, node.At(f, check), cluster.Refused)
				settles(t, s.outside, http, local.AtNode(node, f), "web-1", node.Addr(f))
			}
		}
		s.change(t, local)
	}
}

func (s *stage) terminating(t *testing.T) {
	svc := s.service(t, `
metadata: {name: terminating}
spec: {type: NodePort, internalTrafficPolicy: Cluster, externalTrafficPolicy: Cluster}
---
endpoints:
- {addresses: [web-1], conditions: {ready: false, serving: true, terminating: true}}
- {addresses: [web-2], conditions: {ready: false, terminating: true}}`)
	for _, f := range s.FamilyList() {
		reach(t, s.client.Host, http, svc.At(f, http), "web-1", s.client.Addr(f))
		reach(t, s.farClient.Host, http, svc.At(f, http), "web-1", s.farClient.Addr(f))
	}
	s.change(t, svc.With("spec: {internalTrafficPolicy: Local}"))
	for _, f := range s.FamilyList() {
		reach(t, s.client.Host, http, svc.At(f, http), "web-1", s.client.Addr(f))
		becomes(t, s.farClient.Host, http, svc.At(f, http), cluster.Timeout)
	}
	s.change(t, svc)
	for _, f := range s.FamilyList() {
		reach(t, s.outside, http, svc.AtNode(s.node3, f), "web-1", s.node3.Addr(f))
	}
	s.change(t, svc.With("spec: {externalTrafficPolicy: Local}"))
	for _, f := range s.FamilyList() {
		settles(t, s.outside, http, svc.AtNode(s.node1, f), "web-1", s.outside.Addr(f))
		becomes(t, s.outside, http, svc.AtNode(s.node3, f), cluster.Timeout)
	}
}

// published writes the slices that the slice controller would create for a Service with publishNotReadyAddresses:
// its endpoints are ready, even while they terminate.
func (s *stage) published(t *testing.T) {
	svc := s.service(t, `
metadata: {name: published}
spec: {publishNotReadyAddresses: true}
---
endpoints: [{addresses: [web-1]}]`)
	for _, f := range s.FamilyList() {
		reach(t, s.farClient.Host, http, svc.At(f, http), "web-1", s.farClient.Addr(f))
	}
	s.apply(t, svc.With("endpoints: [{addresses: [web-1], conditions: {ready: true, serving: false, terminating: true}}]").SlicesYAML())
	for _, f := range s.FamilyList() {
		reach(t, s.farClient.Host, http, svc.At(f, http), "web-1", s.farClient.Addr(f))
		reach(t, s.client.Host, http, svc.At(f, http), "web-1", s.client.Addr(f))
	}
	s.apply(t, svc.With("endpoints: [{addresses: [web-1], conditions: {ready: false, terminating: true}}]").SlicesYAML())
	for _, f := range s.FamilyList() {
		becomes(t, s.farClient.Host, http, svc.At(f, http), cluster.Refused)
		becomes(t, s.client.Host, http, svc.At(f, http), cluster.Refused)
	}
}

func (s *stage) internalLocalHost(t *testing.T) {
	s.node1.Serve(t, cluster.TCP, 8089, cluster.As("host-1"))
	svc := s.service(t, `
metadata: {name: itp-host}
spec: {internalTrafficPolicy: Local, ports: [{name: http, port: 80, targetPort: 8089}]}
---
endpoints: [{addresses: [node-1]}]`)
	for _, f := range s.FamilyList() {
		reach(t, s.client.Host, http, svc.At(f, http), "host-1", s.client.Addr(f))
		if got := s.node1.Await(t, patience, cluster.TCP, svc.At(f, http)); got.Server != "host-1" {
			t.Errorf("%s: a connection from the node reached %s", f, got.Server)
		}
		eventuallyUnserved(t, s.farClient.Host, http, svc.At(f, http))
		eventuallyUnserved(t, s.node3.Host, http, svc.At(f, http))
	}
}

func (s *stage) externalLocal(t *testing.T) {
	svc := s.service(t, `
metadata: {name: etp}
spec: {type: LoadBalancer, externalTrafficPolicy: Local}
---
endpoints: [{addresses: [web-1]}, {addresses: [web-2]}]`)
	s.everyPort(t, func(t *testing.T, f cluster.Family, p port) {
		reach(t, s.outside, p, svc.AtBalancer(f, p), "web-1", s.outside.Addr(f))
		reach(t, s.outside, p, svc.AtNode(s.node1, f), "web-1", s.outside.Addr(f))
		reach(t, s.outside, p, svc.AtNode(s.node2, f), "web-2", s.outside.Addr(f))
		// node-1 treats another node as an outside client.
		reach(t, s.node3.Host, p, svc.AtNode(s.node1, f), "web-1", s.node3.Addr(f))
		// Connections from the node itself and from its pods keep their source address.
		reach(t, s.client.Host, p, svc.AtBalancer(f, p), "web-1", s.client.Addr(f))
		reach(t, s.client.Host, p, svc.AtNode(s.node1, f), "web-1", s.client.Addr(f))
		reach(t, s.node1.Host, p, svc.AtBalancer(f, p), "web-1", s.node1.Addr(f))
		// The ClusterIP follows internalTrafficPolicy.
		s.farClient.Await(t, patience, p.Protocol, svc.At(f, p))
	})
}

func (s *stage) noLocalEndpoint(t *testing.T) {
	svc := s.service(t, `
metadata: {name: etp-93456}
spec: {type: LoadBalancer, externalTrafficPolicy: Local}
---
endpoints: [{addresses: [web-2]}]`)
	s.sendBalancerTo(t, svc, s.node3)
	s.everyPort(t, func(t *testing.T, f cluster.Family, p port) {
		reach(t, s.farClient.Host, p, svc.AtBalancer(f, p), "web-2", s.farClient.Addr(f))
		reach(t, s.node3.Host, p, svc.AtBalancer(f, p), "web-2", s.node3.Addr(f))
		reach(t, s.farClient.Host, p, svc.AtNode(s.node3, f), "web-2", s.farClient.Addr(f))
		reach(t, s.node3.Host, p, svc.AtNode(s.node3, f), "web-2", s.node3.Addr(f))
	})
	before := s.requests(s.otherNode)
	for _, f := range s.FamilyList() {
		becomes(t, s.outside, http, svc.AtBalancer(f, http), cluster.Timeout)
		becomes(t, s.outside, dns, svc.AtBalancer(f, dns), cluster.Timeout)
		becomes(t, s.outside, http, svc.AtNode(s.node3, f), cluster.Timeout)
	}
	if after := s.requests(s.otherNode); after != before {
		t.Errorf("the endpoint on another node received %d requests from outside clients", after-before)
	}
}

// unknownAddress connects from a node to a node port on one of the node's own addresses. The kernel also uses that
// address as the source, but other nodes have no route to it.
func (s *stage) unknownAddress(t *testing.T) {
	svc := s.service(t, `
metadata: {name: etp-unknown-address}
spec: {type: NodePort, externalTrafficPolicy: Local}
---
endpoints: [{addresses: [web-2]}]`)
	unknown := map[cluster.Family]netip.Prefix{
		cluster.V4: netip.MustParsePrefix("198.51.100.7/32"), cluster.V6: netip.MustParsePrefix("2001:db8:51::7/128"),
	}
	s.addAddresses(t, unknown)
	for _, f := range s.FamilyList() {
		settles(t, s.node3.Host, http, netip.AddrPortFrom(unknown[f].Addr(), svc.NodePort()).String(), "web-2", s.node3.Addr(f))
	}
}
