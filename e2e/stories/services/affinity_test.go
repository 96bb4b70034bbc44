package services

import (
	"fmt"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// front is where a Service is reached, by its kind.
type front struct {
	name string
	at   func(cluster.Family, port) string
}

func TestAffinity(t *testing.T) {
	s := onStage(t)

	t.Run("at a ClusterIP", func(t *testing.T) {
		// proves: 23, 25, 74, 75, 100, 101
		svc := s.define("sticky", podEndpoint(s.sameNode), podEndpoint(s.otherNode))
		s.stickAndSwitch(t, svc, s.farClient.Host, front{"ClusterIP", svc.at})
	})
	t.Run("at a node port", func(t *testing.T) {
		// proves: 26, 28
		svc := s.defineNodePort("sticky-np", podEndpoint(s.sameNode), podEndpoint(s.otherNode))
		s.stickAndSwitch(t, svc, s.outside, front{"node port", func(f cluster.Family, _ port) string { return svc.atNode(s.node3, f) }})
	})
	t.Run("at a load balancer with policy Cluster", func(t *testing.T) {
		// proves: 117, 118
		svc := s.defineBalancer("sticky-lb", podEndpoint(s.sameNode), podEndpoint(s.otherNode))
		s.stickAndSwitch(t, svc, s.outside, front{"load balancer", svc.atBalancer})
	})
	t.Run("at a load balancer with policy Local", func(t *testing.T) {
		// proves: 115, 116
		second := s.node1.Pod(t, "web-1b")
		t.Cleanup(func() { _ = second.Delete() })
		for _, p := range []port{http, dns} {
			second.Serve(t, p.protocol, p.target)
		}
		svc := s.defineBalancer("sticky-local", podEndpoint(s.sameNode), podEndpoint(second)).with(externalLocal)
		s.stickAndSwitch(t, svc, s.outside, front{"load balancer", svc.atBalancer})
	})
	t.Run("at an external IP", func(t *testing.T) {
		svc, at := s.withExternalIPs(s.define("sticky-eip", podEndpoint(s.sameNode), podEndpoint(s.otherNode)))
		s.stickAndSwitch(t, svc, s.outside, front{"external IP", at})
	})
	t.Run("it ends when the endpoint goes", func(t *testing.T) {
		svc := s.define("sticky-gone", podEndpoint(s.sameNode), podEndpoint(s.otherNode))
		svc.affinity = 600
		s.create(t, svc)
		for _, f := range s.FamilyList() {
			held := s.farClient.Await(t, patience, cluster.TCP, svc.at(f, http)).Server
			stays, other := s.sameNode, "web-1"
			if held == "web-1" {
				stays, other = s.otherNode, "web-2"
			}
			s.change(t, svc.to(podEndpoint(stays)))
			reach(t, s.farClient.Host, http, svc.at(f, http), other, s.farClient.Addr(f))
			s.change(t, svc)
		}
	})
	t.Run("it ends after its timeout", func(t *testing.T) {
		// proves: 24, 27
		s.affinityTimeout(t)
	})
}

// stickAndSwitch wants one client to stay with its endpoint while affinity is on, and to be spread while it is off.
func (s *stage) stickAndSwitch(t *testing.T, svc service, client *cluster.Host, at front) {
	t.Helper()
	svc.ports = []port{http, dns}
	for i, affinity := range []int{600, 0, 600} {
		svc.affinity = affinity
		if i == 0 {
			s.create(t, svc)
		} else {
			s.change(t, svc)
		}
		for _, f := range s.FamilyList() {
			for _, p := range svc.ports {
				cluster.Eventually(t, patience, fmt.Sprintf("%s %s %s: affinity %d", at.name, f, p.protocol, affinity), func() error {
					servers := map[string]int{}
					for range 6 {
						r := client.Probe(p.protocol, at.at(f, p), slowly)
						if r.Outcome != cluster.Answered {
							return fmt.Errorf("%s", r)
						}
						servers[r.Reply.Server]++
					}
					if want := map[bool]int{true: 1, false: 2}[affinity > 0]; len(servers) != want {
						return fmt.Errorf("six requests were answered by %v", servers)
					}
					return nil
				})
			}
		}
	}
}

// affinityTimeout waits for the kernel to forget a client. It does not while it remembers one of the client's connections (a
// closed TCP connection for two minutes, docs/known-limits.md), and looks again a minute after that. UDP with a short timeout of
// its own shows Kubernetes' timeout alone.
func (s *stage) affinityTimeout(t *testing.T) {
	const timeout = 5
	s.restartAgent(t, s.node3, "--ipvs-udp-timeout", "2s")
	svc := s.defineNodePort("sticky-timeout", podEndpoint(s.sameNode), podEndpoint(s.otherNode))
	svc.affinity = timeout
	s.create(t, svc)
	for _, f := range s.FamilyList() {
		for _, at := range []front{
			{"ClusterIP", svc.at},
			{"node port", func(f cluster.Family, _ port) string { return svc.atNode(s.node3, f) }},
		} {
			held := s.farClient.Await(t, patience, cluster.UDP, at.at(f, dns)).Server
			for range 3 {
				if got := s.farClient.Get(t, cluster.UDP, at.at(f, dns), slowly); got.Server != held {
					t.Errorf("%s %s: within the timeout the client moved from %s to %s", f, at.name, held, got.Server)
				}
			}
			// Waiting is the point here: a client that asks begins the timeout anew.
			time.Sleep((timeout + 3) * time.Second)
			if got := s.farClient.Get(t, cluster.UDP, at.at(f, dns), slowly); got.Server == held {
				t.Errorf("%s %s: after the timeout round robin should have come to the other endpoint, but %s answered again", f, at.name, held)
			}
		}
	}
}
