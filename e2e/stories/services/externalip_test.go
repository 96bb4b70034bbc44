package services

import (
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

func TestExternalIPs(t *testing.T) {
	s := onStage(t)

	t.Run("reached from pods, nodes and outside", func(t *testing.T) {
		// proves: 11
		svc := s.service(t, `
metadata: {name: eip}
spec: {externalIPs: [203.0.113.242, "2001:db8:cb::f2"]}
---
endpoints: [{addresses: [web-2]}]`)
		s.everyPort(t, func(t *testing.T, f cluster.Family, p port) {
			reach(t, s.client.Host, p, svc.AtExternal(f, p), "web-2", s.node1.Addr(f))
			reach(t, s.farClient.Host, p, svc.AtExternal(f, p), "web-2", s.node3.Addr(f))
			reach(t, s.node1.Host, p, svc.AtExternal(f, p), "web-2", s.node1.Addr(f))
			reach(t, s.outside, p, svc.AtExternal(f, p), "web-2", s.node1.Addr(f))
		})
	})

	t.Run("the node's own ports are closed there", func(t *testing.T) {
		svc := s.service(t, `
metadata: {name: eip-closed}
spec: {externalIPs: [203.0.113.243, "2001:db8:cb::f3"]}
---
endpoints: [{addresses: [web-2]}]`)
		s.node1.Serve(t, cluster.TCP, 2222)
		daemon := port{Protocol: cluster.TCP, Number: 2222}
		for _, f := range s.FamilyList() {
			s.client.Await(t, patience, cluster.TCP, svc.AtExternal(f, http))
			s.client.MustRefuse(t, cluster.TCP, svc.AtExternal(f, daemon), slowly)
			s.outside.MustRefuse(t, cluster.TCP, svc.AtExternal(f, daemon), slowly)
		}
	})

	// kube-proxy binds the address on all other nodes, which then cannot reach the address's owner
	// (kubernetes/kubernetes#104679).
	t.Run("another node's address stays with that node, issue 104679", func(t *testing.T) {
		// proves: 144
		s.addressOfAnotherNode(t)
	})

	t.Run("a node's own address keeps the ports that the node needs or uses", func(t *testing.T) { s.portsOfTheNode(t) })

	t.Run("a gateway may get an unused address of the node's network", func(t *testing.T) { s.gatewayMoves(t) })

	t.Run("switched off, or outside the allowed ranges", func(t *testing.T) {
		s.externalIPsNotAllowed(t)
	})
}

func (s *stage) addressOfAnotherNode(t *testing.T) {
	s.service(t, `
metadata: {name: eip-104679}
spec: {externalIPs: [node-2]}
---
endpoints: [{addresses: [web-1]}]`)
	s.service(t, `
metadata: {name: lb-104679}
spec: {type: LoadBalancer, ports: [{name: alt, port: 81, targetPort: 8080}]}
status: {loadBalancer: {ingress: [{ip: node-2}]}}
---
endpoints: [{addresses: [web-1]}]`)
	alt := port{Protocol: cluster.TCP, Number: 81}
	s.node2.Serve(t, cluster.TCP, 2222, cluster.As("daemon-of-node-2"))
	for _, f := range s.FamilyList() {
		// On node-2, the Service ports lead to the endpoint, and all other ports belong to node-2.
		reach(t, s.outside, http, s.node2.At(f, http.Number), "web-1", s.node2.Addr(f))
		reach(t, s.outside, alt, s.node2.At(f, alt.Number), "web-1", s.node2.Addr(f))
		for _, from := range []*cluster.Host{s.client.Host, s.node1.Host, s.node3.Host, s.outside} {
			if got := from.Get(t, cluster.TCP, s.node2.At(f, 2222), slowly); got.Server != "daemon-of-node-2" {
				t.Errorf("%s -> node-2 over %s: answered by %s", from.Name, f, got.Server)
			}
		}
		s.node1.MustRun(t, "ping", "-c1", "-W5", s.node2.Addr(f).String())
		// Only node-2 serves the Service.
		reach(t, s.node1.Host, http, s.node2.At(f, http.Number), "web-1", s.node2.Addr(f))
	}
	out := s.node1.MustRun(t, "ip", "-o", "addr", "show", "dev", "kube-ipvs0", "to", s.node2.V4.String())
	if out != "" {
		t.Errorf("node-1 has node-2's address: %s", out)
	}
}

// portsOfTheNode publishes ports on node-1's own addresses. Processes on node-1 already use two of them.
func (s *stage) portsOfTheNode(t *testing.T) {
	daemon := cluster.As("daemon-of-node-1")
	s.node1.Serve(t, cluster.TCP, 6443, daemon)
	s.node1.Serve(t, cluster.TCP, 8081, daemon)
	svc := s.service(t, `
metadata: {name: eip-ports}
spec:
  externalIPs: [node-1]
  ports:
  - {name: web, port: 8082, targetPort: 8080}
  - {name: api, port: 6443, targetPort: 8080}
  - {name: kubelet, port: 10250, targetPort: 8080}
  - {name: busy, port: 8081, targetPort: 8080}
---
endpoints: [{addresses: [web-2]}]`)
	for _, f := range s.FamilyList() {
		reach(t, s.outside, port{Protocol: cluster.TCP, Number: 8082, Target: 8080}, s.node1.At(f, 8082), "web-2", s.node1.Addr(f))
		for _, number := range []uint16{6443, 8081} {
			if got := s.outside.Get(t, cluster.TCP, s.node1.At(f, number), slowly); got.Server != "daemon-of-node-1" {
				t.Errorf("%s at %d: answered by %s", f, number, got.Server)
			}
		}
		s.outside.MustRefuse(t, cluster.TCP, s.node1.At(f, 10250), slowly)
	}
	s.awaitEvent(t, svc, ":6443/tcp", "for the API server")
	s.awaitEvent(t, svc, ":8081/tcp", "a process on this node already listens")
	if !cluster.Userspace() { // where the agent itself listens at the port
		s.node1.Serve(t, cluster.TCP, 8082, daemon)
	}
	s.restartAgent(t, s.node1)
	for _, f := range s.FamilyList() {
		reach(t, s.outside, port{Protocol: cluster.TCP, Number: 8082, Target: 8080}, s.node1.At(f, 8082), "web-2", s.node1.Addr(f))
	}
}

// gatewayMoves claims two addresses in node-1's network before they become gateway addresses. The kernel refuses a
// route through a node's own address.
func (s *stage) gatewayMoves(t *testing.T) {
	svc := s.service(t, `
metadata: {name: eip-gateway}
spec: {externalIPs: [192.168.50.77, "fd00:50::77", 203.0.113.245]}
---
endpoints: [{addresses: [web-2]}]`)
	s.client.Await(t, patience, cluster.TCP, "203.0.113.245:80")
	s.awaitEvent(t, svc, "192.168.50.77", "in this node's network 192.168.50.0/24")
	s.awaitEvent(t, svc, "fd00:50::77", "in this node's network fd00:50::/64")
	for behind, gateway := range map[string]string{"192.0.2.0/24": "192.168.50.77", "2001:db8:99::/64": "fd00:50::77"} {
		s.node1.MustRun(t, "ip", "route", "add", behind, "via", gateway)
		s.node1.MustRun(t, "ip", "route", "del", behind, "via", gateway)
	}
}

func (s *stage) externalIPsNotAllowed(t *testing.T) {
	svc := s.service(t, `
metadata: {name: eip-off}
spec: {externalIPs: [203.0.113.244, "2001:db8:cb::f4"]}
---
endpoints: [{addresses: [web-2]}]`)
	for _, f := range s.FamilyList() {
		s.farClient.Await(t, patience, cluster.TCP, svc.AtExternal(f, http))
	}
	for _, flags := range [][]string{{"--allow-external-ips=false"}, {"--external-ip-ranges", "192.0.2.0/24,2001:db8:99::/64"}} {
		s.restartAgent(t, s.node3, flags...)
		for _, f := range s.FamilyList() {
			// The endpoint sees node-1, because the router sends the packets there.
			reach(t, s.farClient.Host, http, svc.AtExternal(f, http), "web-2", s.node1.Addr(f))
		}
	}
}
