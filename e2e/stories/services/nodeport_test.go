package services

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

func TestNodePort(t *testing.T) {
	s := onStage(t)

	t.Run("at every node, from everywhere, with one number for three protocols", func(t *testing.T) {
		// proves: 10, 12, 72
		svc := s.service(t, `
metadata: {name: np-everywhere}
spec: {type: NodePort}
---
endpoints: [{addresses: [web-2]}]`)
		s.everyPort(t, func(t *testing.T, f cluster.Family, p port) {
			for _, node := range s.Nodes {
				at := svc.AtNode(node, f)
				// Replies must return through this node, so the endpoint sees this node as the source.
				reach(t, s.outside, p, at, "web-2", node.Addr(f))
				reach(t, s.client.Host, p, at, "web-2", node.Addr(f))
				reach(t, s.node1.Host, p, at, "web-2", node.Addr(f))
			}
			reach(t, s.client.Host, p, svc.At(f, p), "web-2", s.client.Addr(f))
		})
	})

	t.Run("loopback addresses refuse", func(t *testing.T) {
		svc := s.service(t, `
metadata: {name: np-loopback}
spec: {type: NodePort}
---
endpoints: [{addresses: [web-1]}]`)
		s.node1.Await(t, patience, cluster.TCP, svc.AtNode(s.node1, cluster.V4))
		s.node1.MustRefuse(t, cluster.TCP, fmt.Sprintf("127.0.0.1:%d", svc.NodePort()), slowly)
		s.node1.MustRefuse(t, cluster.TCP, fmt.Sprintf("[::1]:%d", svc.NodePort()), slowly)
	})

	t.Run("loopback addresses that nodePortAddresses names", func(t *testing.T) { s.loopbackNodePorts(t) })

	t.Run("the port is free after its Service is deleted", func(t *testing.T) {
		// proves: 19, 71, 73
		s.freedPort(t)
	})

	t.Run("without endpoints it refuses immediately", func(t *testing.T) {
		// proves: 31
		svc := s.service(t, `
metadata: {name: np-empty}
spec: {type: NodePort}`)
		if !cluster.Userspace() { // where no rule keeps the daemon from answering
			s.node3.Serve(t, cluster.UDP, svc.NodePort(), cluster.As("a-daemon"))
		}
		for _, f := range s.FamilyList() {
			becomes(t, s.outside, http, svc.AtNode(s.node3, f), cluster.Refused)
			becomes(t, s.client.Host, http, svc.AtNode(s.node3, f), cluster.Refused)
			becomes(t, s.outside, dns, svc.AtNode(s.node3, f), cluster.Refused)
		}
	})

	// kube-proxy's rule for node ports matches any address, so it also masquerades clients of this ClusterIP port
	// (kubernetes/kubernetes#132068).
	t.Run("a ClusterIP port that equals a node port keeps the source, issue 132068", func(t *testing.T) {
		// proves: 146
		s.portLikeNodePort(t)
	})

	t.Run("node ports follow the node's addresses", func(t *testing.T) { s.movingAddresses(t) })
	t.Run("only at chosen addresses", func(t *testing.T) { s.chosenAddresses(t) })
	t.Run("endpoints on the node's network", func(t *testing.T) {
		// proves: 78, 104
		s.nodePortToHost(t)
	})
}

// loopbackNodePorts checks node ports on loopback addresses. The agent forwards these connections to the
// node port on the node's own address, so endpoints see that address.
func (s *stage) loopbackNodePorts(t *testing.T) {
	svc := s.service(t, `
metadata: {name: np-at-loopback}
spec: {type: NodePort}
---
endpoints: [{addresses: [web-2]}]`)
	at := func(f cluster.Family) string {
		addr := map[cluster.Family]netip.Addr{cluster.V4: netip.AddrFrom4([4]byte{127, 0, 0, 1}), cluster.V6: netip.IPv6Loopback()}[f]
		return netip.AddrPortFrom(addr, svc.NodePort()).String()
	}
	var taken *cluster.Server
	if !cluster.Userspace() { // where the agent itself listens at the port
		taken = s.node3.Serve(t, cluster.UDP, svc.NodePort(), cluster.As("a-daemon"))
	}
	s.restartAgent(t, s.node3, "--nodeport-addresses", "all,localhost")
	for _, f := range s.FamilyList() {
		settles(t, s.node3.Host, http, at(f), "web-2", s.node3.Addr(f))
		reach(t, s.outside, http, svc.AtNode(s.node3, f), "web-2", s.node3.Addr(f))
	}
	if taken != nil {
		cluster.Eventually(t, patience, "status names the taken port", func() error {
			const problem = "loopback node ports of Service default/np-at-loopback"
			if out, _ := s.node3.Run(cluster.AgentBinary(t), "status", "--status-socket", s.node3.StatusSocket()); !strings.Contains(out, problem) {
				return fmt.Errorf("no %q in\n%s", problem, out)
			}
			return nil
		})
		taken.Close()
	}
	for _, f := range s.FamilyList() {
		settles(t, s.node3.Host, dns, at(f), "web-2", s.node3.Addr(f))
	}
	s.remove(t, svc.YAML())
	for _, f := range s.FamilyList() {
		becomes(t, s.node3.Host, http, at(f), cluster.Refused)
	}
}

var second = map[cluster.Family]netip.Prefix{
	cluster.V4: netip.MustParsePrefix("192.168.50.130/24"),
	cluster.V6: netip.MustParsePrefix("fd00:50::8030/64"),
}

func (s *stage) addAddresses(t *testing.T, more map[cluster.Family]netip.Prefix) {
	t.Helper()
	for _, f := range s.FamilyList() {
		s.node3.AddAddr(t, "eth0", more[f].String())
		t.Cleanup(func() { _, _ = s.node3.Run("ip", "addr", "del", more[f].String(), "dev", "eth0") })
	}
}

func (s *stage) movingAddresses(t *testing.T) {
	svc := s.service(t, `
metadata: {name: np-moving}
spec: {type: NodePort}
---
endpoints: [{addresses: [web-2]}]`)
	s.outside.Await(t, patience, cluster.TCP, svc.AtNode(s.node3, cluster.V4))
	at := func(f cluster.Family) string { return netip.AddrPortFrom(second[f].Addr(), svc.NodePort()).String() }
	// The limit is one second, plus a margin for emulated machines.
	const aMoment = 3 * time.Second
	s.addAddresses(t, second)
	for _, f := range s.FamilyList() {
		began := time.Now()
		s.outside.Await(t, aMoment, cluster.TCP, at(f))
		t.Logf("%s: served after %s", f, time.Since(began).Round(time.Millisecond))
		s.node3.MustRun(t, "ip", "addr", "del", second[f].String(), "dev", "eth0")
		cluster.Eventually(t, aMoment, "the virtual server at the address is removed", func() error {
			servers, err := s.node3.VirtualServers()
			if _, found := servers[cluster.VirtualKey(cluster.TCP, at(f))]; found {
				err = fmt.Errorf("%s still exists", at(f))
			}
			return err
		})
	}
}

func (s *stage) chosenAddresses(t *testing.T) {
	svc := s.service(t, `
metadata: {name: np-chosen}
spec: {type: NodePort}
---
endpoints: [{addresses: [web-2]}]`)
	s.addAddresses(t, second)
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
			becomes(t, s.outside, http, svc.AtNode(s.node3, f), outcomes[choice.primary])
			becomes(t, s.outside, http, netip.AddrPortFrom(second[f].Addr(), svc.NodePort()).String(), outcomes[choice.additional])
		}
	}
}

func (s *stage) nodePortToHost(t *testing.T) {
	s.node2.Serve(t, cluster.TCP, 8088, cluster.As("host-2"))
	svc := s.service(t, `
metadata: {name: np-host}
spec: {type: NodePort, ports: [{name: http, port: 80, targetPort: 8088}]}
---
endpoints: [{addresses: [node-2]}]`)
	for _, f := range s.FamilyList() {
		reach(t, s.client.Host, http, svc.At(f, http), "host-2", s.client.Addr(f))
		reach(t, s.node1.Host, http, svc.At(f, http), "host-2", s.node1.Addr(f))
		reach(t, s.outside, http, svc.AtNode(s.node1, f), "host-2", s.node1.Addr(f))
		if got := s.node2.Await(t, patience, cluster.TCP, svc.At(f, http)); got.Server != "host-2" {
			t.Errorf("%s: a connection from the node reached %s instead of the node's daemon", f, got.Server)
		}
	}
}

func (s *stage) portLikeNodePort(t *testing.T) {
	np := s.service(t, `
metadata: {name: np-132068}
spec: {type: NodePort}
---
endpoints: [{addresses: [web-1]}]`)
	svc := s.service(t, strings.ReplaceAll(`
metadata: {name: same-number}
spec:
  ports:
  - {name: http, port: NODEPORT, targetPort: 8080}
  - {name: dns, protocol: UDP, port: NODEPORT, targetPort: 5353}
---
endpoints: [{addresses: [web-2]}]`, "NODEPORT", fmt.Sprint(np.NodePort())))
	for _, f := range s.FamilyList() {
		for _, p := range svc.Ports() {
			reach(t, s.outside, p, np.AtNode(s.node1, f), "web-1", s.node1.Addr(f))
			reach(t, s.client.Host, p, svc.At(f, p), "web-2", s.client.Addr(f))
		}
	}
}

func (s *stage) freedPort(t *testing.T) {
	svc := s.service(t, `
metadata: {name: np-deleted}
spec: {type: NodePort}
---
endpoints: [{addresses: [web-1]}]`)
	for _, f := range s.FamilyList() {
		s.outside.Await(t, patience, cluster.TCP, svc.AtNode(s.node3, f))
		s.outside.Await(t, patience, cluster.UDP, svc.AtNode(s.node3, f))
	}
	s.remove(t, svc.YAML())
	for _, f := range s.FamilyList() {
		becomes(t, s.outside, http, svc.AtNode(s.node3, f), cluster.Refused)
		becomes(t, s.outside, dns, svc.AtNode(s.node3, f), cluster.Refused)
	}
	s.node3.Serve(t, cluster.TCP, svc.NodePort())
	s.outside.Await(t, patience, cluster.TCP, svc.AtNode(s.node3, cluster.V4)) // the endpoints may disappear before the Service
}
