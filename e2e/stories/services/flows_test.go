package services

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// soon is how long a UDP client may go on towards an endpoint that is gone: tracked connections are looked at once a second;
// an emulated machine takes its time.
const soon = 20 * time.Second

// TestFlows is about what the kernel remembers of connections, when what they lead to changes.
func TestFlows(t *testing.T) {
	s := onStage(t)

	t.Run("UDP clients go on when the server is replaced", func(t *testing.T) {
		// proves: 1, 52, 53, 55, 70, 99, 121
		svc := s.defineBalancer("udp-replaced", podEndpoint(s.sameNode))
		svc.ports = []port{dns}
		s.create(t, svc)
		for _, f := range s.FamilyList() {
			clients := []*cluster.Conn{
				s.awaitOpen(t, s.outside, svc.atNode(s.node3, f)),
				s.awaitOpen(t, s.outside, svc.atBalancer(f, dns)),
				s.awaitOpen(t, s.client.Host, svc.at(f, dns)),
				s.awaitOpen(t, s.farClient.Host, svc.at(f, dns)),
				s.awaitOpen(t, s.node3.Host, svc.at(f, dns)),
			}
			for _, to := range []*cluster.Pod{s.otherNode, s.sameNode} {
				s.change(t, svc.to(podEndpoint(to)))
				for _, c := range clients {
					moves(t, c, to.Name)
				}
			}
		}
	})

	t.Run("UDP clients go on when the server is replaced on its node, with policy Local", func(t *testing.T) {
		// proves: 54, 122
		old, fresh := s.node1.Pod(t, "udp-old"), s.node1.Pod(t, "udp-new")
		t.Cleanup(func() { _ = old.Delete(); _ = fresh.Delete() })
		old.Serve(t, cluster.UDP, dns.target)
		fresh.Serve(t, cluster.UDP, dns.target)
		svc := s.defineBalancer("udp-local", podEndpoint(old)).with(internalLocal).with(externalLocal)
		svc.ports = []port{dns}
		s.create(t, svc)
		var clients []*cluster.Conn
		for _, f := range s.FamilyList() {
			clients = append(clients, s.awaitOpen(t, s.client.Host, svc.at(f, dns)), s.awaitOpen(t, s.outside, svc.atBalancer(f, dns)))
		}
		if err := old.Delete(); err != nil {
			t.Fatal(err)
		}
		s.apply(t, svc.to(podEndpoint(fresh)).slices())
		for _, c := range clients {
			moves(t, c, "udp-new")
		}
	})

	t.Run("a UDP client that sends all along is served when an endpoint is ready", func(t *testing.T) {
		// proves: 56
		svc := s.defineNodePort("udp-waiting", podEndpoint(s.sameNode).as("unready"))
		svc.ports = []port{dns}
		s.create(t, svc)
		server := s.servers[s.sameNode][cluster.UDP]
		for _, f := range s.FamilyList() {
			pod := s.client.StartSender(t, svc.at(f, dns), 100*time.Millisecond)
			outside := s.outside.StartSender(t, svc.atNode(s.node3, f), 100*time.Millisecond)
			s.apply(t, svc.to(podEndpoint(s.sameNode)).slices())
			gains(t, server, s.client.Addr(f).String())
			gains(t, server, s.node3.Addr(f).String())
			pod.Stop()
			outside.Stop()
			s.apply(t, svc.slices())
			becomes(t, s.client.Host, dns, svc.at(f, dns), cluster.Refused)
		}
	})

	t.Run("a UDP client follows a change of the target port", func(t *testing.T) {
		// proves: 58
		s.sameNode.Serve(t, cluster.UDP, 5454, cluster.As("web-1-at-5454"))
		svc := s.defineNodePort("udp-target", podEndpoint(s.sameNode))
		svc.ports = []port{dns}
		s.create(t, svc)
		var clients []*cluster.Conn
		for _, f := range s.FamilyList() {
			clients = append(clients, s.awaitOpen(t, s.outside, svc.atNode(s.node3, f)))
		}
		moved := svc
		moved.ports = []port{{name: "dns", protocol: cluster.UDP, port: 53, target: 5454}}
		s.change(t, moved)
		for _, c := range clients {
			moves(t, c, "web-1-at-5454")
		}
	})

	// kube-proxy skips Services without endpoints when it cleans up, so that the sender goes on to a pod that is gone
	// (kubernetes/kubernetes#139628).
	t.Run("a one-way UDP sender, through zero endpoints and back, issue 139628", func(t *testing.T) {
		// proves: 149
		s.oneWay(t)
	})

	// These senders are fast enough that some datagrams are answered while the kernel still remembers the flows as they were.
	t.Run("a UDP sender that was there before the Service, or its load balancer", func(t *testing.T) {
		svc := s.defineBalancer("udp-early", podEndpoint(s.otherNode))
		svc.ports = []port{dns}
		for _, f := range s.FamilyList() {
			s.farClient.StartSender(t, svc.at(f, dns), 10*time.Millisecond, cluster.FromPort(7000+uint16(f)))
			s.farClient.StartSender(t, svc.atBalancer(f, dns), 10*time.Millisecond, cluster.FromPort(7100+uint16(f)))
		}
		// Long enough for the kernel to remember these flows without a virtual server.
		time.Sleep(time.Second)
		before := svc
		before.balancer = nil
		s.create(t, before)
		for _, f := range s.FamilyList() {
			gains(t, s.servers[s.otherNode][cluster.UDP], s.farClient.Addr(f).String())
		}
		s.apply(t, svc.object())
		for _, f := range s.FamilyList() {
			gains(t, s.servers[s.otherNode][cluster.UDP], s.node3.Addr(f).String()) // external traffic is seen as the node
		}
	})

	t.Run("TCP connections to endpoints that stay are not touched", func(t *testing.T) {
		// proves: 69, 98
		svc := s.define("tcp-stays", podEndpoint(s.sameNode), podEndpoint(s.otherNode))
		s.create(t, svc)
		var held []*cluster.Conn
		for _, f := range s.FamilyList() {
			for range 4 {
				c := s.client.Open(t, cluster.TCP, svc.at(f, http), slowly)
				if c.Server == "web-1" {
					held = append(held, c)
				}
			}
		}
		s.change(t, svc.to(podEndpoint(s.sameNode)))
		for _, f := range s.FamilyList() {
			if counts := s.client.Spread(t, 6, cluster.TCP, svc.at(f, http), slowly); counts["web-1"] != 6 {
				t.Errorf("%s: an endpoint that is gone got requests: %v", f, counts)
			}
		}
		if len(held) == 0 {
			t.Error("no connection to the endpoint that stays")
		}
		for _, c := range held {
			c.MustPing(t)
		}
	})

	t.Run("SCTP associations to an endpoint that is gone end", func(t *testing.T) {
		svc := s.define("sctp-gone", podEndpoint(s.sameNode))
		svc.ports = []port{diam}
		s.create(t, svc)
		for _, f := range s.FamilyList() {
			c := s.client.Open(t, cluster.SCTP, svc.at(f, diam), slowly)
			s.change(t, svc.to(podEndpoint(s.otherNode)))
			reach(t, s.client.Host, diam, svc.at(f, diam), "web-2", s.client.Addr(f))
			cluster.Eventually(t, soon, c.String()+" ends", func() error {
				r, err := c.Ping()
				if err == nil {
					return fmt.Errorf("answered by %s", r.Server)
				}
				return nil
			})
			s.change(t, svc)
		}
	})

	// Where conntrack alone translates, such packets reach the client from an address it does not know, and it resets the
	// connection. IPVS translates them by its own memory, so that this holds with our rule for them and without it.
	t.Run("packets outside the window do not reset a connection, issue 74839", func(t *testing.T) {
		// proves: 57
		svc := s.define("invalid-74839", podEndpoint(s.otherNode))
		s.create(t, svc)
		for _, f := range s.FamilyList() {
			c := s.client.Open(t, cluster.TCP, svc.at(f, http), slowly)
			seen := c.MustPing(t)
			before := resets(t, s.client.Host)
			// As if they had been under way for long: from the endpoint, with numbers that fit nothing.
			if err := s.otherNode.SendStrayTCP(seen.Dest, seen.From(), 20); err != nil {
				t.Fatal(err)
			}
			c.MustPing(t)
			if after := resets(t, s.client.Host); after != before {
				t.Errorf("%s: the client sent %d resets", f, after-before)
			}
			c.MustPing(t)
		}
	})
}

// awaitOpen opens a UDP "connection", a socket that keeps its port, as soon as it is answered.
func (s *stage) awaitOpen(t *testing.T, from *cluster.Host, at string) *cluster.Conn {
	t.Helper()
	from.Await(t, patience, cluster.UDP, at)
	return from.Open(t, cluster.UDP, at, slowly)
}

// moves wants a client that goes on sending to be answered by another server soon.
func moves(t *testing.T, c *cluster.Conn, to string) {
	t.Helper()
	cluster.Eventually(t, soon, fmt.Sprintf("%s moves to %s", c, to), func() error {
		r, err := c.Ping()
		if err == nil && r.Server != to {
			err = fmt.Errorf("still answered by %s", r.Server)
		}
		return err
	})
}

// gains wants a server to get further datagrams from a source.
func gains(t *testing.T, server *cluster.Server, source string) {
	t.Helper()
	before := requestsFrom(server, source)
	cluster.Eventually(t, soon, fmt.Sprintf("%s gets datagrams from %s", server.Name, source), func() error {
		if requestsFrom(server, source) == before {
			return fmt.Errorf("still %d", before)
		}
		return nil
	})
}

func requestsFrom(server *cluster.Server, source string) int {
	for addr, n := range server.Sources() {
		if addr.String() == source {
			return n
		}
	}
	return 0
}

func (s *stage) oneWay(t *testing.T) {
	const target = 5456
	old, fresh := s.node1.Pod(t, "collector-1"), s.node2.Pod(t, "collector-2")
	t.Cleanup(func() { _ = old.Delete(); _ = fresh.Delete() })
	first := old.Serve(t, cluster.UDP, target, cluster.Silent())
	other := fresh.Serve(t, cluster.UDP, target, cluster.Silent())
	logs := port{name: "logs", protocol: cluster.UDP, port: 514, target: target}
	svc := s.defineNodePort("one-way", podEndpoint(old))
	svc.ports = []port{logs}
	s.create(t, svc)
	for _, f := range s.FamilyList() {
		pod := s.client.StartSender(t, svc.at(f, logs), 50*time.Millisecond)
		outside := s.outside.StartSender(t, svc.atNode(s.node3, f), 50*time.Millisecond)
		gains(t, first, s.client.Addr(f).String())
		gains(t, first, s.node3.Addr(f).String())
		s.apply(t, svc.to().slices())
		quiet(t, first)
		s.apply(t, svc.to(podEndpoint(fresh)).slices())
		gains(t, other, s.client.Addr(f).String())
		gains(t, other, s.node3.Addr(f).String())
		pod.Stop()
		outside.Stop()
		s.change(t, svc)
	}
}

// quiet wants a server to get nothing for a second, soon.
func quiet(t *testing.T, server *cluster.Server) {
	t.Helper()
	cluster.Eventually(t, soon, server.Name+" gets nothing any more", func() error {
		before := server.Requests()
		time.Sleep(time.Second)
		if after := server.Requests(); after != before {
			return fmt.Errorf("%d more", after-before)
		}
		return nil
	})
}

// resets counts the TCP resets that a host has sent.
func resets(t *testing.T, h *cluster.Host) int {
	t.Helper()
	out := h.MustRun(t, "cat", "/proc/net/snmp")
	var names []string
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != "Tcp:" {
			continue
		}
		if names == nil {
			names = fields
			continue
		}
		for i, name := range names {
			if name == "OutRsts" {
				n := 0
				if _, err := fmt.Sscan(fields[i], &n); err != nil {
					t.Fatal(err)
				}
				return n
			}
		}
	}
	t.Fatalf("no OutRsts in\n%s", out)
	return 0
}
