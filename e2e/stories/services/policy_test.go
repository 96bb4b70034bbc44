package services

import (
	"fmt"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

const (
	internalLocal = "internalTrafficPolicy: Local"
	externalLocal = "externalTrafficPolicy: Local"
)

func TestPolicies(t *testing.T) {
	s := onStage(t)

	t.Run("internal Local: endpoints of the own node, or none", func(t *testing.T) {
		// proves: 33, 34
		svc := s.define("itp", podEndpoint(s.sameNode)).with(internalLocal)
		s.create(t, svc)
		s.everyPort(t, func(t *testing.T, f cluster.Family, p port) {
			reach(t, s.client.Host, p, svc.at(f, p), "web-1", s.client.Addr(f))
			reach(t, s.node1.Host, p, svc.at(f, p), "web-1", s.node1.Addr(f))
			eventuallyUnserved(t, s.farClient.Host, p, svc.at(f, p))
			eventuallyUnserved(t, s.node3.Host, p, svc.at(f, p))
		})
	})

	t.Run("internal Local: endpoints on the node's network", func(t *testing.T) {
		// proves: 35
		s.node1.Serve(t, cluster.TCP, 8089, cluster.As("host-1"))
		svc := s.define("itp-host", nodeEndpoint(s.node1)).with(internalLocal)
		web := port{name: "http", protocol: cluster.TCP, port: 80, target: 8089}
		svc.ports = []port{web}
		s.create(t, svc)
		for _, f := range s.FamilyList() {
			reach(t, s.client.Host, web, svc.at(f, web), "host-1", s.client.Addr(f))
			if got := s.node1.Await(t, patience, cluster.TCP, svc.at(f, web)); got.Server != "host-1" {
				t.Errorf("%s: the node reached %s", f, got.Server)
			}
			eventuallyUnserved(t, s.farClient.Host, web, svc.at(f, web))
			eventuallyUnserved(t, s.node3.Host, web, svc.at(f, web))
		}
	})

	// kube-proxy falls back to endpoints elsewhere for the ClusterIP as soon as the Service has a node port or load balancer.
	t.Run("internal Local with a load balancer: no endpoint elsewhere either, external clients are served", func(t *testing.T) {
		svc := s.defineBalancer("itp-lb", podEndpoint(s.sameNode)).with(internalLocal)
		s.create(t, svc)
		for _, f := range s.FamilyList() {
			reach(t, s.client.Host, http, svc.at(f, http), "web-1", s.client.Addr(f))
			eventuallyUnserved(t, s.farClient.Host, http, svc.at(f, http))
			reach(t, s.outside, http, svc.atNode(s.node3, f), "web-1", s.node3.Addr(f))
		}
	})

	t.Run("external Local keeps the client's address", func(t *testing.T) {
		// proves: 36, 125, 128
		svc := s.defineBalancer("etp", podEndpoint(s.sameNode), podEndpoint(s.otherNode)).with(externalLocal)
		s.create(t, svc)
		s.everyPort(t, func(t *testing.T, f cluster.Family, p port) {
			reach(t, s.outside, p, svc.atBalancer(f, p), "web-1", s.outside.Addr(f))
			reach(t, s.outside, p, svc.atNode(s.node1, f), "web-1", s.outside.Addr(f))
			reach(t, s.outside, p, svc.atNode(s.node2, f), "web-2", s.outside.Addr(f))
			// A node without endpoints to one that has one: it is an outside client there.
			reach(t, s.node3.Host, p, svc.atNode(s.node1, f), "web-1", s.node3.Addr(f))
			// Pods: the balancer's address is the node's business at once, and the source stays.
			reach(t, s.client.Host, p, svc.atBalancer(f, p), "web-1", s.client.Addr(f))
			reach(t, s.client.Host, p, svc.atNode(s.node1, f), "web-1", s.client.Addr(f))
			reach(t, s.node1.Host, p, svc.atBalancer(f, p), "web-1", s.node1.Addr(f))
			// The ClusterIP has a policy of its own.
			s.farClient.Await(t, patience, p.protocol, svc.at(f, p))
		})
	})

	// kube-proxy serves nobody on the node itself there, and sends outside clients to a pod elsewhere whose answers they
	// cannot recognise (kubernetes/kubernetes#93456).
	t.Run("external Local without a local endpoint: inside served, outside silent, issue 93456", func(t *testing.T) {
		// proves: 145
		svc := s.defineBalancer("etp-93456", podEndpoint(s.otherNode)).with(externalLocal)
		s.create(t, svc)
		s.sendBalancerTo(t, svc, s.node3)
		s.everyPort(t, func(t *testing.T, f cluster.Family, p port) {
			reach(t, s.farClient.Host, p, svc.atBalancer(f, p), "web-2", s.farClient.Addr(f))
			reach(t, s.node3.Host, p, svc.atBalancer(f, p), "web-2", s.node3.Addr(f))
			reach(t, s.farClient.Host, p, svc.atNode(s.node3, f), "web-2", s.farClient.Addr(f))
			reach(t, s.node3.Host, p, svc.atNode(s.node3, f), "web-2", s.node3.Addr(f))
		})
		before := s.requests(s.otherNode)
		for _, f := range s.FamilyList() {
			becomes(t, s.outside, http, svc.atBalancer(f, http), cluster.Timeout)
			becomes(t, s.outside, dns, svc.atBalancer(f, dns), cluster.Timeout)
			becomes(t, s.outside, http, svc.atNode(s.node3, f), cluster.Timeout)
		}
		if after := s.requests(s.otherNode); after != before {
			t.Errorf("the endpoint elsewhere got %d requests of outside clients", after-before)
		}
	})

	t.Run("external Local follows the endpoints, and the policy its changes", func(t *testing.T) {
		// proves: 48
		s.changingPolicy(t)
	})
	t.Run("terminating endpoints serve when no other is left", func(t *testing.T) {
		// proves: 38, 39, 40, 41
		s.terminating(t)
	})
	t.Run("unready and terminating endpoints that are published, or not", func(t *testing.T) {
		// proves: 20, 21, 22
		s.published(t)
	})
}

// requests counts what a pod of the stage was asked so far.
func (s *stage) requests(pod *cluster.Pod) int {
	n := 0
	for _, server := range s.servers[pod] {
		n += server.Requests()
	}
	return n
}

func (s *stage) changingPolicy(t *testing.T) {
	const check = 32002
	cluster1 := s.defineBalancer("etp-changing", podEndpoint(s.sameNode))
	local := cluster1.with(externalLocal).with(fmt.Sprintf("healthCheckNodePort: %d", check))
	s.create(t, local)
	for range 2 {
		s.healthy(t, local, check, s.node1, 1)
		s.healthy(t, local, check, s.node2, 0)
		s.healthy(t, local, check, s.node3, 0)
		for _, f := range s.FamilyList() {
			settles(t, s.outside, http, local.atNode(s.node1, f), "web-1", s.outside.Addr(f))
			becomes(t, s.outside, http, local.atNode(s.node3, f), cluster.Timeout)
			reach(t, s.farClient.Host, http, local.atNode(s.node3, f), "web-1", s.farClient.Addr(f))
		}

		s.change(t, cluster1)
		for _, f := range s.FamilyList() {
			for _, node := range s.Nodes {
				becomes(t, s.outside, http, node.At(f, check), cluster.Refused)
				settles(t, s.outside, http, local.atNode(node, f), "web-1", node.Addr(f))
			}
		}
		s.change(t, local)
	}
}

func (s *stage) terminating(t *testing.T) {
	svc := s.defineNodePort("terminating", podEndpoint(s.sameNode).as("terminating"), podEndpoint(s.otherNode).as("dead"))
	for _, step := range []struct {
		policy string
		local  bool
	}{{"internalTrafficPolicy: Cluster", false}, {internalLocal, true}} {
		now := svc.with(step.policy)
		s.create(t, now)
		for _, f := range s.FamilyList() {
			reach(t, s.client.Host, http, svc.at(f, http), "web-1", s.client.Addr(f))
			if step.local {
				becomes(t, s.farClient.Host, http, svc.at(f, http), cluster.Timeout)
			} else {
				reach(t, s.farClient.Host, http, svc.at(f, http), "web-1", s.farClient.Addr(f))
			}
		}
	}
	s.change(t, svc.with("externalTrafficPolicy: Cluster"))
	for _, f := range s.FamilyList() {
		reach(t, s.outside, http, svc.atNode(s.node3, f), "web-1", s.node3.Addr(f))
	}
	s.change(t, svc.with(externalLocal))
	for _, f := range s.FamilyList() {
		settles(t, s.outside, http, svc.atNode(s.node1, f), "web-1", s.outside.Addr(f))
		becomes(t, s.outside, http, svc.atNode(s.node3, f), cluster.Timeout)
	}
}

// published plays the controller's part: where a Service publishes unready pods, their endpoints are ready, terminating or not.
func (s *stage) published(t *testing.T) {
	svc := s.define("published", podEndpoint(s.sameNode)).with("publishNotReadyAddresses: true")
	s.create(t, svc)
	for _, f := range s.FamilyList() {
		reach(t, s.farClient.Host, http, svc.at(f, http), "web-1", s.farClient.Addr(f))
	}
	s.apply(t, svc.to(podEndpoint(s.sameNode).as("published")).slices())
	for _, f := range s.FamilyList() {
		reach(t, s.farClient.Host, http, svc.at(f, http), "web-1", s.farClient.Addr(f))
		reach(t, s.client.Host, http, svc.at(f, http), "web-1", s.client.Addr(f))
	}
	s.apply(t, svc.to(podEndpoint(s.sameNode).as("dead")).slices())
	for _, f := range s.FamilyList() {
		becomes(t, s.farClient.Host, http, svc.at(f, http), cluster.Refused)
		becomes(t, s.client.Host, http, svc.at(f, http), cluster.Refused)
	}
}
