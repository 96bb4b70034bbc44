package services

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

func TestNodePort(t *testing.T) {
	s := onStage(t)

	t.Run("at every node, from everywhere, with one number for three protocols", func(t *testing.T) {
		// proves: 10, 12, 72
		svc := s.defineNodePort("np-everywhere", podEndpoint(s.otherNode))
		s.create(t, svc)
		s.everyPort(t, func(t *testing.T, f cluster.Family, p port) {
			for _, node := range s.Nodes {
				at := svc.atNode(node, f)
				// Only through this node does the answer find back, so it is who the endpoint sees.
				reach(t, s.outside, p, at, "web-2", node.Addr(f))
				reach(t, s.client.Host, p, at, "web-2", node.Addr(f))
				reach(t, s.node1.Host, p, at, "web-2", node.Addr(f))
			}
			reach(t, s.client.Host, p, svc.at(f, p), "web-2", s.client.Addr(f))
		})
	})

	t.Run("on loopback nobody answers", func(t *testing.T) {
		svc := s.defineNodePort("np-loopback", podEndpoint(s.sameNode))
		s.create(t, svc)
		s.node1.Await(t, patience, cluster.TCP, svc.atNode(s.node1, cluster.V4))
		s.node1.MustRefuse(t, cluster.TCP, fmt.Sprintf("127.0.0.1:%d", svc.nodePort), slowly)
		s.node1.MustRefuse(t, cluster.TCP, fmt.Sprintf("[::1]:%d", svc.nodePort), slowly)
	})

	t.Run("it goes with its Service, and the port is free", func(t *testing.T) {
		// proves: 19, 71, 73
		svc := s.defineNodePort("np-deleted", podEndpoint(s.sameNode))
		s.create(t, svc)
		for _, f := range s.FamilyList() {
			s.outside.Await(t, patience, cluster.TCP, svc.atNode(s.node3, f))
			s.outside.Await(t, patience, cluster.UDP, svc.atNode(s.node3, f))
		}
		s.remove(t, svc.manifest())
		for _, f := range s.FamilyList() {
			becomes(t, s.outside, http, svc.atNode(s.node3, f), cluster.Refused)
			becomes(t, s.outside, dns, svc.atNode(s.node3, f), cluster.Refused)
		}
		s.node3.Serve(t, cluster.TCP, svc.nodePort)
		s.outside.Get(t, cluster.TCP, svc.atNode(s.node3, cluster.V4), slowly)
	})

	t.Run("without endpoints it refuses at once", func(t *testing.T) {
		// proves: 31
		svc := s.defineNodePort("np-empty")
		s.create(t, svc)
		s.node3.Serve(t, cluster.UDP, svc.nodePort, cluster.As("a-daemon"))
		for _, f := range s.FamilyList() {
			becomes(t, s.outside, http, svc.atNode(s.node3, f), cluster.Refused)
			becomes(t, s.client.Host, http, svc.atNode(s.node3, f), cluster.Refused)
			becomes(t, s.outside, dns, svc.atNode(s.node3, f), cluster.Refused)
		}
	})

	// kube-proxy masquerades such clients, because its rule for node ports has no address (kubernetes/kubernetes#132068).
	t.Run("a ClusterIP port that equals a node port keeps the source, issue 132068", func(t *testing.T) {
		// proves: 146
		np := s.defineNodePort("np-132068", podEndpoint(s.sameNode))
		s.create(t, np)
		svc := s.define("same-number", podEndpoint(s.otherNode))
		svc.ports = []port{
			{name: "http", protocol: cluster.TCP, port: np.nodePort, target: http.target},
			{name: "dns", protocol: cluster.UDP, port: np.nodePort, target: dns.target},
		}
		s.create(t, svc)
		for _, f := range s.FamilyList() {
			for _, p := range svc.ports {
				reach(t, s.outside, p, np.atNode(s.node1, f), "web-1", s.node1.Addr(f))
				reach(t, s.client.Host, p, svc.at(f, p), "web-2", s.client.Addr(f))
			}
		}
	})

	t.Run("the node's addresses are followed as they come and go", func(t *testing.T) { s.movingAddresses(t) })
	t.Run("only at chosen addresses", func(t *testing.T) { s.chosenAddresses(t) })
	t.Run("endpoints on the node's network", func(t *testing.T) {
		// proves: 78, 104
		s.node2.Serve(t, cluster.TCP, 8088, cluster.As("host-2"))
		svc := s.defineNodePort("np-host", nodeEndpoint(s.node2))
		web := port{name: "http", protocol: cluster.TCP, port: 80, target: 8088}
		svc.ports = []port{web}
		s.create(t, svc)
		for _, f := range s.FamilyList() {
			reach(t, s.client.Host, web, svc.at(f, web), "host-2", s.client.Addr(f))
			reach(t, s.node1.Host, web, svc.at(f, web), "host-2", s.node1.Addr(f))
			reach(t, s.outside, web, svc.atNode(s.node1, f), "host-2", s.node1.Addr(f))
			if got := s.node2.Await(t, patience, cluster.TCP, svc.at(f, web)); got.Server != "host-2" {
				t.Errorf("%s: the node reached %s instead of itself", f, got.Server)
			}
		}
	})
}

// second addresses of node-3.
var second = map[cluster.Family]netip.Prefix{
	cluster.V4: netip.MustParsePrefix("192.168.50.130/24"),
	cluster.V6: netip.MustParsePrefix("fd00:50::8030/64"),
}

// addSecond gives node-3 its second addresses until the test ends.
func (s *stage) addSecond(t *testing.T) {
	t.Helper()
	for _, f := range s.FamilyList() {
		s.node3.AddAddr(t, "eth0", second[f].String())
		t.Cleanup(func() { _, _ = s.node3.Run("ip", "addr", "del", second[f].String(), "dev", "eth0") })
	}
}

func (s *stage) movingAddresses(t *testing.T) {
	svc := s.defineNodePort("np-moving", podEndpoint(s.otherNode))
	s.create(t, svc)
	s.outside.Await(t, patience, cluster.TCP, svc.atNode(s.node3, cluster.V4))
	at := func(f cluster.Family) string { return netip.AddrPortFrom(second[f].Addr(), svc.nodePort).String() }
	// A second, and what an emulated machine adds to it.
	const aMoment = 3 * time.Second
	s.addSecond(t)
	for _, f := range s.FamilyList() {
		began := time.Now()
		s.outside.Await(t, aMoment, cluster.TCP, at(f))
		t.Logf("%s: served after %s", f, time.Since(began).Round(time.Millisecond))
		s.node3.MustRun(t, "ip", "addr", "del", second[f].String(), "dev", "eth0")
		cluster.Eventually(t, aMoment, "the address's virtual server goes", func() error {
			servers, err := s.node3.VirtualServers()
			if _, there := servers[cluster.VirtualKey(cluster.TCP, at(f))]; there {
				err = fmt.Errorf("%s is still there", at(f))
			}
			return err
		})
	}
}

func (s *stage) chosenAddresses(t *testing.T) {
	svc := s.defineNodePort("np-chosen", podEndpoint(s.otherNode))
	s.create(t, svc)
	s.addSecond(t)
	for _, choice := range []struct {
		addresses           string
		primary, additional bool
	}{
		{"primary", true, false},
		{"192.168.50.128/25,fd00:50::8000/113", false, true},
		{"192.168.50.0/24,fd00:50::/64", true, true},
	} {
		s.restartAgent(t, s.node3, "--nodeport-addresses", choice.addresses)
		for _, f := range s.FamilyList() {
			outcomes := map[bool]cluster.Outcome{true: cluster.Answered, false: cluster.Refused}
			becomes(t, s.outside, http, svc.atNode(s.node3, f), outcomes[choice.primary])
			becomes(t, s.outside, http, netip.AddrPortFrom(second[f].Addr(), svc.nodePort).String(), outcomes[choice.additional])
		}
	}
}
