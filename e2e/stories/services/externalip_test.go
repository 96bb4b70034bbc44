package services

import (
	"fmt"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// withExternalIPs returns the Service with the next external addresses, which the router sends to node-1.
func (s *stage) withExternalIPs(svc service) (service, func(cluster.Family, port) string) {
	ips := []string{fmt.Sprintf("203.0.113.%d", s.next), fmt.Sprintf("2001:db8:cb::%x", s.next)}
	return svc.with(fmt.Sprintf("externalIPs: [%q, %q]", ips[0], ips[1])),
		func(f cluster.Family, p port) string { return addrOf(ips, f, p.port) }
}

func TestExternalIPs(t *testing.T) {
	s := onStage(t)

	t.Run("reached from pods, nodes and outside", func(t *testing.T) {
		// proves: 11
		svc, at := s.withExternalIPs(s.define("eip", podEndpoint(s.otherNode)))
		s.create(t, svc)
		s.everyPort(t, func(t *testing.T, f cluster.Family, p port) {
			reach(t, s.client.Host, p, at(f, p), "web-2", s.node1.Addr(f))
			reach(t, s.farClient.Host, p, at(f, p), "web-2", s.node3.Addr(f))
			reach(t, s.node1.Host, p, at(f, p), "web-2", s.node1.Addr(f))
			reach(t, s.outside, p, at(f, p), "web-2", s.node1.Addr(f))
		})
	})

	t.Run("the node's own ports are closed there", func(t *testing.T) {
		svc, at := s.withExternalIPs(s.define("eip-closed", podEndpoint(s.otherNode)))
		s.create(t, svc)
		s.node1.Serve(t, cluster.TCP, 2222)
		daemon := port{protocol: cluster.TCP, port: 2222}
		for _, f := range s.FamilyList() {
			s.client.Await(t, patience, cluster.TCP, at(f, http))
			s.client.MustRefuse(t, cluster.TCP, at(f, daemon), slowly)
			s.outside.MustRefuse(t, cluster.TCP, at(f, daemon), slowly)
		}
	})

	// kube-proxy binds the address on every node but its owner, which nobody on them can reach any more
	// (kubernetes/kubernetes#104679).
	t.Run("that another node has stays with that node, issue 104679", func(t *testing.T) {
		// proves: 144
		svc := s.define("eip-104679", podEndpoint(s.sameNode)).with(fmt.Sprintf("externalIPs: [%q, %q]", s.node2.V4, s.node2.V6))
		s.create(t, svc)
		alt := port{name: "alt", protocol: cluster.TCP, port: 81, target: http.target}
		balanced := s.defineBalancer("lb-104679", podEndpoint(s.sameNode))
		balanced.ports, balanced.balancer = []port{alt}, []string{s.node2.V4.String(), s.node2.V6.String()}
		s.create(t, balanced)
		s.node2.Serve(t, cluster.TCP, 2222, cluster.As("daemon-of-node-2"))
		for _, f := range s.FamilyList() {
			// At node-2 its ports are served, its other ports are its own.
			reach(t, s.outside, http, s.node2.At(f, http.port), "web-1", s.node2.Addr(f))
			reach(t, s.outside, alt, s.node2.At(f, alt.port), "web-1", s.node2.Addr(f))
			for _, from := range []*cluster.Host{s.client.Host, s.node1.Host, s.node3.Host, s.outside} {
				if got := from.Get(t, cluster.TCP, s.node2.At(f, 2222), slowly); got.Server != "daemon-of-node-2" {
					t.Errorf("%s -> node-2 over %s: answered by %s", from.Name, f, got.Server)
				}
			}
			s.node1.MustRun(t, "ping", "-c1", "-W5", s.node2.Addr(f).String())
			// Nodes keep reaching node-2 itself, so that the Service is served there, and nowhere on the way.
			reach(t, s.node1.Host, http, s.node2.At(f, http.port), "web-1", s.node2.Addr(f))
		}
		out := s.node1.MustRun(t, "ip", "-o", "addr", "show", "dev", "kube-ipvs0", "to", s.node2.V4.String())
		if out != "" {
			t.Errorf("node-1 has node-2's address: %s", out)
		}
	})

	t.Run("switched off, or outside the allowed ranges", func(t *testing.T) {
		svc, at := s.withExternalIPs(s.define("eip-off", podEndpoint(s.otherNode)))
		s.create(t, svc)
		for _, f := range s.FamilyList() {
			s.farClient.Await(t, patience, cluster.TCP, at(f, http))
		}
		for _, flags := range [][]string{{"--allow-external-ips=false"}, {"--external-ip-ranges", "192.0.2.0/24,2001:db8:99::/64"}} {
			s.restartAgent(t, s.node3, flags...)
			for _, f := range s.FamilyList() {
				// The packets leave for the router, and are served at node-1, whose agent allows the address: seen as that node.
				reach(t, s.farClient.Host, http, at(f, http), "web-2", s.node1.Addr(f))
			}
		}
	})
}
