package services

import (
	"fmt"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// TestChanges lets Services become something else, step by step.
func TestChanges(t *testing.T) {
	s := onStage(t)

	t.Run("type and ports of a TCP Service", func(t *testing.T) {
		// proves: 112
		s.changeType(t, "type-tcp", http)
	})
	t.Run("type and ports of a UDP Service", func(t *testing.T) {
		// proves: 113
		s.changeType(t, "type-udp", dns)
	})

	t.Run("ExternalName and back", func(t *testing.T) {
		// proves: 13, 14, 15, 16
		svc := s.defineNodePort("ext-name", podEndpoint(s.otherNode))
		name := fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %s}
spec: {type: ExternalName, externalName: example.org}
---`, svc.name)
		t.Cleanup(func() { s.remove(t, svc.manifest()) })
		clusterOnly := svc
		clusterOnly.kind, clusterOnly.nodePort = "ClusterIP", 0
		for _, now := range []service{clusterOnly, svc} {
			s.apply(t, name)
			s.change(t, now)
			for _, f := range s.FamilyList() {
				reach(t, s.client.Host, http, svc.at(f, http), "web-2", s.client.Addr(f))
				if now.nodePort != 0 {
					reach(t, s.outside, http, svc.atNode(s.node3, f), "web-2", s.node3.Addr(f))
				}
			}
			s.apply(t, name)
			for _, ip := range svc.ips {
				s.awaitTable(t, s.node3, serverKey(ip, http), nil)
			}
			if now.nodePort != 0 {
				becomes(t, s.outside, http, svc.atNode(s.node3, cluster.V4), cluster.Refused)
				becomes(t, s.outside, http, svc.atNode(s.node3, cluster.V6), cluster.Refused)
			}
		}
	})

	t.Run("TCP and UDP at one port, then one of them", func(t *testing.T) {
		// proves: 45, 46
		s.otherNode.Serve(t, cluster.TCP, 5353)
		tcp := port{name: "tcp", protocol: cluster.TCP, port: 53, target: 5353}
		udp := port{name: "udp", protocol: cluster.UDP, port: 53, target: 5353}
		svc := s.defineBalancer("one-port", podEndpoint(s.otherNode))
		for i, ports := range [][]port{{tcp, udp}, {tcp}, {udp}, {tcp, udp}} {
			svc.ports = ports
			if i == 0 {
				s.create(t, svc)
			} else {
				s.change(t, svc)
			}
			want := map[cluster.Protocol]cluster.Outcome{cluster.TCP: cluster.Refused, cluster.UDP: cluster.Refused}
			for _, p := range ports {
				want[p.protocol] = cluster.Answered
			}
			for _, f := range s.FamilyList() {
				for _, p := range []port{tcp, udp} {
					becomes(t, s.client.Host, p, svc.at(f, p), want[p.protocol])
					becomes(t, s.farClient.Host, p, svc.atBalancer(f, p), want[p.protocol])
				}
			}
		}
	})

	t.Run("labels that give Services and slices to others", func(t *testing.T) {
		// proves: 29, 30
		svc := s.defineNodePort("labelled", podEndpoint(s.otherNode))
		s.create(t, svc)
		reach(t, s.client.Host, http, svc.at(cluster.V4, http), "web-2", s.client.V4)
		theirs := svc
		theirs.labels = "service.kubernetes.io/service-proxy-name: somebody-else"
		s.apply(t, theirs.object())
		for _, ip := range svc.ips {
			s.awaitTable(t, s.node3, serverKey(ip, http), nil)
		}
		becomes(t, s.outside, http, svc.atNode(s.node3, cluster.V4), cluster.Refused)
		s.apply(t, svc.object())
		s.awaitService(t, svc)
		reach(t, s.outside, http, svc.atNode(s.node3, cluster.V4), "web-2", s.node3.V4)

		headless := svc
		headless.sliceLabels = `, service.kubernetes.io/headless: ""`
		s.apply(t, headless.slices())
		for _, f := range s.FamilyList() {
			becomes(t, s.client.Host, http, svc.at(f, http), cluster.Refused)
		}
		s.apply(t, svc.slices())
		for _, f := range s.FamilyList() {
			reach(t, s.client.Host, http, svc.at(f, http), "web-2", s.client.Addr(f))
		}
	})

	t.Run("a named port with another number in each slice", func(t *testing.T) {
		// proves: 2, 51, 129, 130
		s.otherNode.Serve(t, cluster.TCP, 9091, cluster.As("web-2-at-9091"))
		s.otherNode.Serve(t, cluster.TCP, 9092, cluster.As("web-2-admin"))
		s.sameNode.Serve(t, cluster.TCP, 9092, cluster.As("web-1-admin"))
		admin := port{name: "admin", protocol: cluster.TCP, port: 81, target: 9092}
		svc := s.define("slices-ports", podEndpoint(s.sameNode))
		svc.ports = []port{http, admin}
		more := svc.to(podEndpoint(s.otherNode))
		more.ports = []port{{name: "http", protocol: cluster.TCP, port: 80, target: 9091}, admin}
		var moreSlices string
		for _, f := range s.FamilyList() {
			moreSlices += more.slice(fmt.Sprintf("slices-ports-more-v%d", f), f, more.endpoints)
		}
		s.create(t, svc)
		s.apply(t, moreSlices)
		t.Cleanup(func() { s.remove(t, moreSlices) })
		for _, f := range s.FamilyList() {
			for _, want := range []struct {
				port port
				of   []string
			}{{http, []string{"web-1", "web-2-at-9091"}}, {admin, []string{"web-1-admin", "web-2-admin"}}} {
				cluster.Eventually(t, patience, "both slices' endpoints answer at "+want.port.name, func() error {
					servers := map[string]bool{}
					for range 4 {
						r := s.client.Probe(cluster.TCP, svc.at(f, want.port), slowly)
						servers[r.Reply.Server] = true
					}
					if len(servers) != 2 || !servers[want.of[0]] || !servers[want.of[1]] {
						return fmt.Errorf("%s: %v", f, servers)
					}
					return nil
				})
			}
		}
	})

	t.Run("two Services with the same endpoints, one of them goes", func(t *testing.T) {
		// proves: 6, 68
		one, two := s.define("twin-1", podEndpoint(s.otherNode)), s.define("twin-2", podEndpoint(s.otherNode))
		s.create(t, one)
		s.create(t, two)
		for _, f := range s.FamilyList() {
			reach(t, s.client.Host, http, one.at(f, http), "web-2", s.client.Addr(f))
			reach(t, s.client.Host, http, two.at(f, http), "web-2", s.client.Addr(f))
		}
		flows := s.client.OpenFlows(t, 2, cluster.TCP, two.at(cluster.V4, http), cluster.FlowConfig{Within: patience})
		s.remove(t, one.manifest())
		for _, ip := range one.ips {
			s.awaitTable(t, s.node1, serverKey(ip, http), nil)
		}
		flows.AwaitRound(t, patience)
		flows.MustBeUnharmed(t)
		s.create(t, s.define("twin-3", podEndpoint(s.sameNode)))
		reach(t, s.client.Host, http, two.at(cluster.V6, http), "web-2", s.client.V6)
	})

	t.Run("an SCTP Service does not load the SCTP module", func(t *testing.T) {
		// proves: 47
		if s.sctpLoaded != nil {
			t.Error(s.sctpLoaded)
		}
	})
}

// changeType follows upstream's steps and checks every front at each of them, also those that shall be closed.
func (s *stage) changeType(t *testing.T, name string, p port) {
	full := s.defineBalancer(name, podEndpoint(s.otherNode))
	full.ports = []port{p}
	otherPort, otherNodePort := p, full.nodePort+1000
	otherPort.port = p.port + 1000
	type step struct {
		name string
		svc  service
		// open fronts: cluster IP, node port, load balancer
		node, balancer bool
	}
	plain := full
	plain.kind, plain.nodePort, plain.balancer = "ClusterIP", 0, nil
	np := full
	np.kind, np.balancer = "NodePort", nil
	moved := np
	moved.nodePort = otherNodePort
	lb := full
	lb.nodePort = otherNodePort
	lbMoved := lb
	lbMoved.ports = []port{otherPort}
	npAgain := lbMoved
	npAgain.kind, npAgain.balancer = "NodePort", nil
	back := npAgain
	back.kind, back.nodePort = "ClusterIP", 0
	t.Cleanup(func() { s.remove(t, full.manifest()) })
	for _, step := range []step{
		{"ClusterIP", plain, false, false},
		{"NodePort", np, true, false},
		{"another node port", moved, true, false},
		{"LoadBalancer", lb, true, true},
		{"another port", lbMoved, true, true},
		{"NodePort again", npAgain, true, false},
		{"ClusterIP again", back, false, false},
	} {
		t.Run(step.name, func(t *testing.T) {
			s.apply(t, step.svc.manifest())
			now := step.svc.ports[0]
			outcome := map[bool]cluster.Outcome{true: cluster.Answered, false: cluster.Refused}
			for _, f := range s.FamilyList() {
				reach(t, s.client.Host, now, step.svc.at(f, now), "web-2", s.client.Addr(f))
				for _, number := range []uint16{full.nodePort, otherNodePort} {
					open := step.node && number == step.svc.nodePort
					becomes(t, s.outside, now, s.node3.At(f, number), outcome[open])
				}
				for _, number := range []uint16{p.port, otherPort.port} {
					at := port{protocol: p.protocol, port: number}
					if step.balancer {
						becomes(t, s.client.Host, now, full.atBalancer(f, at), outcome[number == now.port])
					} else {
						eventuallyUnserved(t, s.client.Host, now, full.atBalancer(f, at))
					}
				}
			}
		})
	}
}

// eventuallyUnserved waits until nobody answers, whatever the client is told.
func eventuallyUnserved(t *testing.T, from *cluster.Host, p port, at string) {
	t.Helper()
	cluster.Eventually(t, patience, from.Name+" gets no answer at "+at, func() error {
		if r := from.Probe(p.protocol, at, cluster.Within(cluster.DefaultSilence)); r.Outcome == cluster.Answered {
			return fmt.Errorf("%s", r)
		}
		return nil
	})
}
