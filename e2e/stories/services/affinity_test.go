package services

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

type frontend struct {
	name string
	at   func(cluster.Family, port) string
}

func TestAffinity(t *testing.T) {
	s := onStage(t)

	t.Run("at a ClusterIP", func(t *testing.T) {
		// proves: 23, 25, 74, 75, 100, 101
		svc := s.define(`
metadata: {name: sticky}
---
endpoints: [{addresses: [web-1]}, {addresses: [web-2]}]`)
		s.stickAndSwitch(t, svc, s.farClient.Host, frontend{"ClusterIP", svc.At})
	})
	t.Run("at a node port", func(t *testing.T) {
		// proves: 26, 28
		svc := s.define(`
metadata: {name: sticky-np}
spec: {type: NodePort}
---
endpoints: [{addresses: [web-1]}, {addresses: [web-2]}]`)
		s.stickAndSwitch(t, svc, s.outside, frontend{"node port", func(f cluster.Family, _ port) string { return svc.AtNode(s.node3, f) }})
	})
	t.Run("at a load balancer with policy Cluster", func(t *testing.T) {
		// proves: 117, 118
		svc := s.define(`
metadata: {name: sticky-lb}
spec: {type: LoadBalancer}
---
endpoints: [{addresses: [web-1]}, {addresses: [web-2]}]`)
		s.stickAndSwitch(t, svc, s.outside, frontend{"load balancer", svc.AtBalancer})
	})
	t.Run("at a load balancer with policy Local", func(t *testing.T) {
		// proves: 115, 116
		second := s.node1.Pod(t, "web-1b")
		t.Cleanup(func() { _ = second.Delete() })
		for _, p := range []port{http, dns} {
			second.Serve(t, p.Protocol, p.Target)
		}
		svc := s.define(`
metadata: {name: sticky-local}
spec: {type: LoadBalancer, externalTrafficPolicy: Local}
---
endpoints: [{addresses: [web-1]}, {addresses: [web-1b]}]`)
		s.stickAndSwitch(t, svc, s.outside, frontend{"load balancer", svc.AtBalancer})
	})
	t.Run("at an external IP", func(t *testing.T) {
		svc := s.define(`
metadata: {name: sticky-eip}
spec: {externalIPs: [203.0.113.241, "2001:db8:cb::f1"]}
---
endpoints: [{addresses: [web-1]}, {addresses: [web-2]}]`)
		s.stickAndSwitch(t, svc, s.outside, frontend{"external IP", svc.AtExternal})
	})
	t.Run("ends when the endpoint is removed", func(t *testing.T) {
		svc := s.service(t, `
metadata: {name: sticky-gone}
spec: {sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 600}}}
---
endpoints: [{addresses: [web-1]}, {addresses: [web-2]}]`)
		for _, f := range s.FamilyList() {
			held := s.farClient.Await(t, patience, cluster.TCP, svc.At(f, http)).Server
			other := map[string]string{"web-1": "web-2", "web-2": "web-1"}[held]
			s.change(t, svc.With("endpoints: [{addresses: ["+other+"]}]"))
			reach(t, s.farClient.Host, http, svc.At(f, http), other, s.farClient.Addr(f))
			s.change(t, svc)
		}
	})
	t.Run("ends after its timeout", func(t *testing.T) {
		// proves: 24, 27
		s.affinityTimeout(t)
	})
}

// stickAndSwitch checks that a client keeps its endpoint while affinity is on and reaches both endpoints while it is off.
func (s *stage) stickAndSwitch(t *testing.T, svc service, client *cluster.Host, at frontend) {
	t.Helper()
	off := svc.With(`
spec:
  ports:
  - {name: http, port: 80, targetPort: 8080}
  - {name: dns, protocol: UDP, port: 80, targetPort: 5353}`)
	on := off.With("spec: {sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 600}}}")
	s.create(t, on)
	for _, step := range []struct {
		name    string
		svc     service
		servers int
	}{{"affinity", on, 1}, {"no affinity", off, 2}, {"affinity again", on, 1}} {
		s.change(t, step.svc)
		for _, f := range s.FamilyList() {
			for _, p := range []port{http, dns} {
				cluster.Eventually(t, patience, fmt.Sprintf("%s %s %s: %s", at.name, f, p.Protocol, step.name), func() error {
					servers := map[string]int{}
					for range 6 {
						r := client.Probe(p.Protocol, at.at(f, p), slowly)
						if r.Outcome != cluster.Answered {
							return fmt.Errorf("%s", r)
						}
						servers[r.Reply.Server]++
					}
					if len(servers) != step.servers {
						return fmt.Errorf("six requests were answered by %v", servers)
					}
					return nil
				})
			}
		}
	}
}

// affinityTimeout waits until the kernel forgets a client. While the kernel tracks one of the client's connections (a
// closed TCP connection for two minutes, see docs/known-limits.md), it keeps the affinity and checks again a minute
// later. With a short UDP timeout, only the affinity timeout matters.
func (s *stage) affinityTimeout(t *testing.T) {
	const timeout = 5 * time.Second
	s.restartAgent(t, s.node3, "--ipvs-udp-timeout", "2s")
	svc := s.service(t, `
metadata: {name: sticky-timeout}
spec:
  type: NodePort
  sessionAffinity: ClientIP
  sessionAffinityConfig: {clientIP: {timeoutSeconds: 5}}
---
endpoints: [{addresses: [web-1]}, {addresses: [web-2]}]`)
	for _, f := range s.FamilyList() {
		for _, at := range []frontend{
			{"ClusterIP", svc.At},
			{"node port", func(f cluster.Family, _ port) string { return svc.AtNode(s.node3, f) }},
		} {
			held := s.farClient.Await(t, patience, cluster.UDP, at.at(f, dns)).Server
			for range 3 {
				if got := s.farClient.Get(t, cluster.UDP, at.at(f, dns), slowly); got.Server != held {
					t.Errorf("%s %s: the client moved from %s to %s within the timeout", f, at.name, held, got.Server)
				}
			}
			// Do not poll here: every request restarts the timeout.
			time.Sleep(timeout + 3*time.Second)
			if cluster.Balancing() { // the next endpoint is random
				clients := s.node3.MustRun(t, "nft", "list", "table", "inet", "kube-ipvs")
				if strings.Contains(clients, s.farClient.Addr(f).String()+" timeout") {
					t.Errorf("%s %s: the client is still remembered after the timeout:\n%s", f, at.name, clients)
				}
				continue
			}
			if got := s.farClient.Get(t, cluster.UDP, at.at(f, dns), slowly); got.Server == held {
				t.Errorf("%s %s: after the timeout round robin should choose the other endpoint, but %s answered again", f, at.name, held)
			}
		}
	}
}
