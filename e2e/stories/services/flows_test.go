package services

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// soon is the maximum time for a UDP flow to leave a removed endpoint. The agent checks tracked connections once a
// second, and emulated machines are slow.
const soon = 20 * time.Second

func TestFlows(t *testing.T) {
	s := onStage(t)

	t.Run("UDP clients move when the server is replaced", func(t *testing.T) {
		// proves: 1, 52, 53, 55, 70, 99, 121
		s.replacedServer(t)
	})

	t.Run("UDP clients move when the server is replaced on its node, with policy Local", func(t *testing.T) {
		// proves: 54, 122
		s.replacedLocalServer(t)
	})

	t.Run("a UDP client that keeps sending is served when an endpoint is ready", func(t *testing.T) {
		// proves: 56
		s.waitingSender(t)
	})

	t.Run("a UDP client follows a change of the target port", func(t *testing.T) {
		// proves: 58
		s.sameNode.Serve(t, cluster.UDP, 5454, cluster.As("web-1-at-5454"))
		svc := s.service(t, `
metadata: {name: udp-target}
spec: {type: NodePort, ports: [{name: dns, protocol: UDP, port: 80, targetPort: 5353}]}
---
endpoints: [{addresses: [web-1]}]`)
		var clients []*cluster.Conn
		for _, f := range s.FamilyList() {
			clients = append(clients, s.awaitOpen(t, s.outside, svc.AtNode(s.node3, f)))
		}
		s.change(t, svc.With("spec: {ports: [{name: dns, protocol: UDP, port: 53, targetPort: 5454}]}"))
		for _, c := range clients {
			moves(t, c, "web-1-at-5454")
		}
	})

	// kube-proxy skips Services without endpoints when it cleans up, so the sender keeps sending to a deleted pod
	// (kubernetes/kubernetes#139628).
	t.Run("a one-way UDP sender, through zero endpoints and back, issue 139628", func(t *testing.T) {
		// proves: 149
		s.oneWay(t)
	})

	// These senders are fast enough to receive some replies while the kernel still tracks the old flows.
	t.Run("a UDP sender that starts before the Service, or before its load balancer", func(t *testing.T) {
		s.earlySenders(t)
	})

	t.Run("TCP connections to endpoints that stay are not touched", func(t *testing.T) {
		// proves: 69, 98
		s.remainingEndpoints(t)
	})

	inKernel(t, noSCTP, "SCTP associations to a removed endpoint end", func(t *testing.T) {
		svc := s.service(t, `
metadata: {name: sctp-gone}
spec: {ports: [{name: diameter, protocol: SCTP, port: 80, targetPort: 3868}]}
---
endpoints: [{addresses: [web-1]}]`)
		for _, f := range s.FamilyList() {
			c := s.client.Open(t, cluster.SCTP, svc.At(f, diam), slowly)
			s.change(t, svc.With("endpoints: [{addresses: [web-2]}]"))
			reach(t, s.client.Host, diam, svc.At(f, diam), "web-2", s.client.Addr(f))
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

	// If only conntrack translated these packets, the client would receive them from an unknown address and reset the
	// connection. IPVS translates them from its own connection table, so the connection survives even without the
	// agent's rule.
	t.Run("packets outside the window do not reset a connection, issue 74839", func(t *testing.T) {
		// proves: 57
		s.strayPackets(t)
	})
}

func (s *stage) awaitOpen(t *testing.T, from *cluster.Host, at string) *cluster.Conn {
	t.Helper()
	from.Await(t, patience, cluster.UDP, at)
	return from.Open(t, cluster.UDP, at, slowly)
}

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

// seen returns the address at which a server sees a pod that is a Service's client.
func seen(pod *cluster.Pod, f cluster.Family) netip.Addr {
	if cluster.Userspace() {
		return pod.Node.Addr(f)
	}
	return pod.Addr(f)
}

func gains(t *testing.T, server *cluster.Server, source netip.Addr) {
	t.Helper()
	before := requestsFrom(server, source)
	cluster.Eventually(t, soon, fmt.Sprintf("%s gets datagrams from %s", server.Name, source), func() error {
		if requestsFrom(server, source) == before {
			return fmt.Errorf("still %d", before)
		}
		return nil
	})
}

func requestsFrom(server *cluster.Server, source netip.Addr) int {
	return server.Sources()[source]
}

func (s *stage) oneWay(t *testing.T) {
	old, fresh := s.node1.Pod(t, "collector-1"), s.node2.Pod(t, "collector-2")
	t.Cleanup(func() { _ = old.Delete(); _ = fresh.Delete() })
	first := old.Serve(t, cluster.UDP, 5456, cluster.Silent())
	other := fresh.Serve(t, cluster.UDP, 5456, cluster.Silent())
	logs := port{Protocol: cluster.UDP, Number: 514}
	svc := s.service(t, `
metadata: {name: one-way}
spec: {type: NodePort, ports: [{name: logs, protocol: UDP, port: 514, targetPort: 5456}]}
---
endpoints: [{addresses: [collector-1]}]`)
	for _, f := range s.FamilyList() {
		pod := s.client.StartSender(t, svc.At(f, logs), 50*time.Millisecond)
		outside := s.outside.StartSender(t, svc.AtNode(s.node3, f), 50*time.Millisecond)
		gains(t, first, seen(s.client, f))
		gains(t, first, s.node3.Addr(f))
		s.apply(t, svc.With("endpoints: []").SlicesYAML())
		quiet(t, first)
		s.apply(t, svc.With("endpoints: [{addresses: [collector-2]}]").SlicesYAML())
		gains(t, other, seen(s.client, f))
		gains(t, other, s.node3.Addr(f))
		pod.Stop()
		outside.Stop()
		s.change(t, svc)
	}
}

func quiet(t *testing.T, server *cluster.Server) {
	t.Helper()
	cluster.Eventually(t, soon, server.Name+" gets no more datagrams", func() error {
		before := server.Requests()
		time.Sleep(time.Second)
		if after := server.Requests(); after != before {
			return fmt.Errorf("%d more", after-before)
		}
		return nil
	})
}

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
	t.Fatalf("no counter OutRsts in\n%s", out)
	return 0
}

func (s *stage) replacedServer(t *testing.T) {
	svc := s.service(t, `
metadata: {name: udp-replaced}
spec: {type: LoadBalancer, ports: [{name: dns, protocol: UDP, port: 80, targetPort: 5353}]}
---
endpoints: [{addresses: [web-1]}]`)
	for _, f := range s.FamilyList() {
		clients := []*cluster.Conn{
			s.awaitOpen(t, s.outside, svc.AtNode(s.node3, f)),
			s.awaitOpen(t, s.outside, svc.AtBalancer(f, dns)),
			s.awaitOpen(t, s.client.Host, svc.At(f, dns)),
			s.awaitOpen(t, s.farClient.Host, svc.At(f, dns)),
			s.awaitOpen(t, s.node3.Host, svc.At(f, dns)),
		}
		for _, to := range []*cluster.Pod{s.otherNode, s.sameNode} {
			s.change(t, svc.With("endpoints: [{addresses: ["+to.Name+"]}]"))
			for _, c := range clients {
				moves(t, c, to.Name)
			}
		}
	}
}

func (s *stage) replacedLocalServer(t *testing.T) {
	old, fresh := s.node1.Pod(t, "udp-old"), s.node1.Pod(t, "udp-new")
	t.Cleanup(func() { _ = old.Delete(); _ = fresh.Delete() })
	old.Serve(t, cluster.UDP, dns.Target)
	fresh.Serve(t, cluster.UDP, dns.Target)
	svc := s.service(t, `
metadata: {name: udp-local}
spec:
  type: LoadBalancer
  internalTrafficPolicy: Local
  externalTrafficPolicy: Local
  ports: [{name: dns, protocol: UDP, port: 80, targetPort: 5353}]
---
endpoints: [{addresses: [udp-old]}]`)
	var clients []*cluster.Conn
	for _, f := range s.FamilyList() {
		clients = append(clients, s.awaitOpen(t, s.client.Host, svc.At(f, dns)), s.awaitOpen(t, s.outside, svc.AtBalancer(f, dns)))
	}
	if err := old.Delete(); err != nil {
		t.Fatal(err)
	}
	s.apply(t, svc.With("endpoints: [{addresses: [udp-new]}]").SlicesYAML())
	for _, c := range clients {
		moves(t, c, "udp-new")
	}
}

func (s *stage) waitingSender(t *testing.T) {
	svc := s.service(t, `
metadata: {name: udp-waiting}
spec: {type: NodePort, ports: [{name: dns, protocol: UDP, port: 80, targetPort: 5353}]}
---
endpoints: [{addresses: [web-1], conditions: {ready: false}}]`)
	server := s.servers[s.sameNode][cluster.UDP]
	for _, f := range s.FamilyList() {
		pod := s.client.StartSender(t, svc.At(f, dns), 100*time.Millisecond)
		outside := s.outside.StartSender(t, svc.AtNode(s.node3, f), 100*time.Millisecond)
		s.apply(t, svc.With("endpoints: [{addresses: [web-1]}]").SlicesYAML())
		gains(t, server, seen(s.client, f))
		gains(t, server, s.node3.Addr(f))
		pod.Stop()
		outside.Stop()
		s.apply(t, svc.SlicesYAML())
		becomes(t, s.client.Host, dns, svc.At(f, dns), cluster.Refused)
	}
}

func (s *stage) earlySenders(t *testing.T) {
	svc := s.define(`
metadata: {name: udp-early}
spec: {type: LoadBalancer, ports: [{name: dns, protocol: UDP, port: 80, targetPort: 5353}]}
---
endpoints: [{addresses: [web-2]}]`)
	for _, f := range s.FamilyList() {
		s.farClient.StartSender(t, svc.At(f, dns), 10*time.Millisecond, cluster.FromPort(7000+uint16(f)))
		s.farClient.StartSender(t, svc.AtBalancer(f, dns), 10*time.Millisecond, cluster.FromPort(7100+uint16(f)))
	}
	// The kernel must track these flows before a virtual server exists.
	time.Sleep(time.Second)
	s.create(t, svc.With("status: {loadBalancer: {ingress: [{hostname: pending.example.org}]}}"))
	for _, f := range s.FamilyList() {
		gains(t, s.servers[s.otherNode][cluster.UDP], seen(s.farClient, f))
	}
	s.apply(t, svc.ServiceYAML())
	for _, f := range s.FamilyList() {
		gains(t, s.servers[s.otherNode][cluster.UDP], s.node3.Addr(f)) // the node masquerades external traffic
	}
}

func (s *stage) remainingEndpoints(t *testing.T) {
	svc := s.service(t, `
metadata: {name: tcp-stays}
---
endpoints: [{addresses: [web-1]}, {addresses: [web-2]}]`)
	var held []*cluster.Conn
	for _, f := range s.FamilyList() {
		for range 4 {
			c := s.client.Open(t, cluster.TCP, svc.At(f, http), slowly)
			if c.Server == "web-1" {
				held = append(held, c)
			}
		}
	}
	s.change(t, svc.With("endpoints: [{addresses: [web-1]}]"))
	for _, f := range s.FamilyList() {
		if counts := s.client.Spread(t, 6, cluster.TCP, svc.At(f, http), slowly); counts["web-1"] != 6 {
			t.Errorf("%s: a removed endpoint received requests: %v", f, counts)
		}
	}
	if len(held) == 0 {
		t.Error("no connection reached the remaining endpoint")
	}
	for _, c := range held {
		c.MustPing(t)
	}
}

func (s *stage) strayPackets(t *testing.T) {
	svc := s.service(t, `
metadata: {name: invalid-74839}
---
endpoints: [{addresses: [web-2]}]`)
	for _, f := range s.FamilyList() {
		c := s.client.Open(t, cluster.TCP, svc.At(f, http), slowly)
		seen := c.MustPing(t)
		before := resets(t, s.client.Host)
		// These packets imitate very late arrivals from the endpoint, with sequence numbers outside the window.
		if err := s.otherNode.SendStrayTCP(seen.Dest, seen.From(), 20); err != nil {
			t.Fatal(err)
		}
		c.MustPing(t)
		if after := resets(t, s.client.Host); after != before {
			t.Errorf("%s: the client sent %d resets", f, after-before)
		}
		c.MustPing(t)
	}
}
