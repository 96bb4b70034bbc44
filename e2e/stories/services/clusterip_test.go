package services

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

func TestClusterIP(t *testing.T) {
	s := onStage(t)

	t.Run("pod to pod on the same node keeps its source", func(t *testing.T) {
		// proves: 59, 60, 61, 91, 92, 93
		svc := s.service(t, `
metadata: {name: same-node}
---
endpoints: [{addresses: [web-1]}]`)
		s.everyPort(t, func(t *testing.T, f cluster.Family, p port) {
			got := s.client.Get(t, p.Protocol, svc.At(f, p), slowly)
			wantReply(t, got, "web-1", s.client.Addr(f))
		})
	})

	t.Run("pod to pod on another node keeps its source", func(t *testing.T) {
		// proves: 4, 59, 60, 61, 91, 92, 93
		s.podToOtherNode(t)
	})

	t.Run("a process on the host is seen as its node", func(t *testing.T) {
		// proves: 62, 63, 64, 94, 95
		s.hostProcess(t)
	})

	t.Run("a client outside the cluster is seen as the node that forwards it", func(t *testing.T) {
		s.outsideClient(t)
	})

	t.Run("a pod reaches itself through its Service", func(t *testing.T) {
		// proves: 5, 65, 66, 67, 96, 97
		s.hairpin(t)
	})

	t.Run("the node's own packets to pods do not use a virtual address as source", func(t *testing.T) {
		s.ownSource(t)
	})

	t.Run("a Service without endpoints refuses immediately", func(t *testing.T) {
		// proves: 31, 32
		s.empty(t)
	})

	t.Run("the host's own ports are closed on virtual addresses, ping works", func(t *testing.T) {
		s.closedPorts(t)
	})

	t.Run("endpoints share the connections", func(t *testing.T) {
		s.sharedConnections(t)
	})

	t.Run("several slices, each with its own target port, and an endpoint in both", func(t *testing.T) { s.slices(t) })
	t.Run("unready, terminating and dead endpoints", func(t *testing.T) {
		// proves: 22
		s.conditions(t)
	})
	t.Run("an endpoint that leaves keeps its open connections", func(t *testing.T) { s.drain(t) })
	t.Run("created, changed, deleted, recreated", func(t *testing.T) {
		// proves: 1, 3, 7
		s.lifecycle(t)
	})
	t.Run("session affinity", func(t *testing.T) { s.affinity(t) })
	t.Run("Services that kube-ipvs must not serve", func(t *testing.T) {
		// proves: 29
		s.foreignObjects(t)
	})
	t.Run("an endpoint that would loop is rejected, the others serve", func(t *testing.T) { s.badEndpoint(t) })
	t.Run("an endpoint at another Service's address is rejected, the others serve", func(t *testing.T) { s.virtualEndpoint(t) })
	t.Run("the API server stops and starts", func(t *testing.T) {
		// proves: 9
		s.apiServerStops(t)
	})
}

func (s *stage) slices(t *testing.T) {
	s.otherNode.Serve(t, cluster.TCP, 9090)
	svc := s.service(t, `
metadata: {name: slices}
---
endpoints: [{addresses: [web-1]}]`)
	more := svc.With(`
ports: [{name: http, port: 9090}]
endpoints: [{addresses: [web-2]}]`).MoreSlicesYAML("-more") +
		svc.With(`endpoints: [{addresses: [web-1], conditions: {ready: false, terminating: true}}]`).MoreSlicesYAML("-twin")
	s.apply(t, more)
	defer s.remove(t, more)
	awaitDestinations(t, s.node1, http, svc.At(cluster.V4, http), s.sameNode.At(cluster.V4, 8080), s.otherNode.At(cluster.V4, 9090))
	wantEvenly(t, "endpoints of both slices", s.client.Spread(t, 20, cluster.TCP, svc.At(cluster.V4, http), slowly))
}

func (s *stage) conditions(t *testing.T) {
	svc := s.service(t, `
metadata: {name: conditions}
---
endpoints: [{addresses: [web-1]}, {addresses: [web-2], conditions: {ready: false}}]`)
	only := func(name string) {
		t.Helper()
		for _, f := range s.FamilyList() {
			if counts := s.client.Spread(t, 4, cluster.TCP, svc.At(f, http), slowly); counts[name] != 4 {
				t.Errorf("%s: want only %s to answer: %v", f, name, counts)
			}
		}
	}
	only("web-1")
	s.change(t, svc.With(`
endpoints:
- {addresses: [web-1], conditions: {ready: false, serving: true, terminating: true}}
- {addresses: [web-2]}`))
	only("web-2")
	// No endpoint is ready, so the terminating endpoint that still serves receives the connections.
	s.change(t, svc.With(`
endpoints:
- {addresses: [web-1], conditions: {ready: false, serving: true, terminating: true}}
- {addresses: [web-2], conditions: {ready: false, terminating: true}}`))
	only("web-1")
}

func (s *stage) drain(t *testing.T) {
	svc := s.service(t, `
metadata: {name: drain}
---
endpoints: [{addresses: [web-2]}]`)
	var open []*cluster.Conn
	for _, f := range s.FamilyList() {
		c := s.client.Open(t, cluster.TCP, svc.At(f, http), slowly)
		c.MustPing(t)
		open = append(open, c)
	}
	s.apply(t, svc.With(`
endpoints:
- {addresses: [web-1]}
- {addresses: [web-2], conditions: {ready: false, serving: true, terminating: true}}`).SlicesYAML())
	// The slices of the two families arrive independently.
	for _, f := range s.FamilyList() {
		awaitDestinations(t, s.node1, http, svc.At(f, http), s.sameNode.At(f, 8080), s.otherNode.At(f, 8080)+draining)
	}
	for _, c := range open {
		if got := c.MustPing(t); got.Server != "web-2" {
			t.Errorf("the open connection moved to %s", got.Server)
		}
		c.Close()
	}
	for _, f := range s.FamilyList() {
		if got := s.client.Get(t, cluster.TCP, svc.At(f, http), slowly); got.Server != "web-1" {
			t.Errorf("%s: a new connection reached %s, which is terminating", f, got.Server)
		}
	}
}

func (s *stage) lifecycle(t *testing.T) {
	svc := s.service(t, `
metadata: {name: life}
---
endpoints: [{addresses: [web-1]}]`)
	s.client.Get(t, cluster.TCP, svc.At(cluster.V4, http), slowly)

	changed := svc.With(`
spec:
  ports:
  - {name: http, port: 81, targetPort: 8080}
  - {name: dns, protocol: UDP, port: 80, targetPort: 5353}
  - {name: diameter, protocol: SCTP, port: 80, targetPort: 3868}`)
	moved := port{Protocol: cluster.TCP, Number: 81}
	s.change(t, changed)
	s.awaitNoServer(t, s.node1, svc, http)
	s.client.Get(t, cluster.TCP, changed.At(cluster.V6, moved), slowly)
	s.client.MustRefuse(t, cluster.TCP, svc.At(cluster.V4, http), slowly)
	s.client.MustRefuse(t, cluster.TCP, svc.At(cluster.V6, http), slowly)

	s.remove(t, changed.YAML())
	s.awaitNoServer(t, s.node1, svc, moved)
	for _, ip := range svc.Spec.ClusterIPs {
		cluster.Eventually(t, patience, ip+" is released", func() error {
			binds, err := s.node1.Binds(netip.MustParseAddr(ip))
			if binds {
				err = errors.New("it is still local")
			}
			return err
		})
	}

	s.create(t, svc.With("endpoints: [{addresses: [web-2]}]"))
	s.everyPort(t, func(t *testing.T, f cluster.Family, p port) {
		wantReply(t, s.client.Get(t, p.Protocol, svc.At(f, p), slowly), "web-2", s.client.Addr(f))
	})
}

func (s *stage) affinity(t *testing.T) {
	svc := s.service(t, `
metadata: {name: sticky}
spec:
  ports: [{name: http, port: 80, targetPort: 8080}]
  sessionAffinity: ClientIP
  sessionAffinityConfig: {clientIP: {timeoutSeconds: 600}}
---
endpoints: [{addresses: [web-1]}, {addresses: [web-2]}]`)
	for _, f := range s.FamilyList() {
		if counts := s.client.Spread(t, 6, cluster.TCP, svc.At(f, http), slowly); len(counts) != 1 {
			t.Errorf("%s: one client reached several pods: %v", f, counts)
		}
	}
	s.apply(t, svc.With("spec: {sessionAffinity: None, sessionAffinityConfig: null}").ServiceYAML())
	s.fromBoth(t, s.client.Host, svc)
}

func (s *stage) foreignObjects(t *testing.T) {
	svc := s.service(t, `
metadata: {name: other-proxy}
---
endpoints: [{addresses: [web-1]}]`)
	s.apply(t, svc.With("metadata: {labels: {service.kubernetes.io/service-proxy-name: another-proxy}}").ServiceYAML())
	s.awaitNoServer(t, s.node1, svc, http)
	s.change(t, svc)

	notProxied := `
apiVersion: v1
kind: Service
metadata: {name: headless}
spec: {clusterIP: None, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: external}
spec: {type: ExternalName, externalName: example.org}
`
	before := virtualServers(t, s.node1)
	s.apply(t, notProxied)
	defer s.remove(t, notProxied)
	// Once the agent serves this Service, it has processed the other Services.
	marker := s.service(t, `
metadata: {name: marker}
---
endpoints: [{addresses: [web-1]}]`).Spec.ClusterIPs
	for key := range virtualServers(t, s.node1) {
		if _, existed := before[key]; !existed && !strings.Contains(key, marker[0]) && !strings.Contains(key, marker[1]) {
			t.Errorf("kube-ipvs serves %s, but must not", key)
		}
	}
}

func virtualServers(t *testing.T, node *cluster.Node) map[string]cluster.VirtualServer {
	t.Helper()
	servers, err := node.VirtualServers()
	if err != nil {
		t.Fatal(err)
	}
	return servers
}

func (s *stage) apiServerStops(t *testing.T) {
	svc := s.service(t, `
metadata: {name: no-api-server}
---
endpoints: [{addresses: [web-1]}]`)
	s.api.StopAPIServer()
	for range 3 {
		s.client.Get(t, cluster.TCP, svc.At(cluster.V4, http), slowly)
	}
	if err := s.api.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.change(t, svc.With("endpoints: [{addresses: [web-2]}]"))
	wantReply(t, s.client.Get(t, cluster.TCP, svc.At(cluster.V6, http), slowly), "web-2", s.client.V6)
}

func (s *stage) empty(t *testing.T) {
	svc := s.service(t, "metadata: {name: empty}")
	for _, f := range s.FamilyList() {
		for _, from := range []*cluster.Host{s.client.Host, s.node1.Host, s.outside} {
			from.MustRefuse(t, cluster.TCP, svc.At(f, http), slowly)
			if from != s.node1.Host {
				refuses(t, from, cluster.UDP, svc.At(f, dns))
			}
		}
		// The host's own packets reach IPVS on output, so the send itself fails.
		if r := s.node1.Probe(cluster.UDP, svc.At(f, dns), slowly); r.Outcome != cluster.Filtered && r.Outcome != cluster.Refused {
			t.Errorf("%s, UDP from the host: want an immediate error, got %s", f, r)
		}
	}
	if cluster.Userspace() {
		return
	}
	// An SCTP client's connect ignores ICMPv6 errors (see docs/architecture.md).
	if r := s.client.Probe(cluster.SCTP, svc.At(cluster.V4, diam), slowly); r.Outcome == cluster.Answered || r.Outcome == cluster.Timeout {
		t.Errorf("SCTP over IPv4: want an immediate error, got %s", r)
	}
}

func (s *stage) closedPorts(t *testing.T) {
	svc := s.service(t, `
metadata: {name: closed}
---
endpoints: [{addresses: [web-2]}]`)
	s.node1.Serve(t, cluster.TCP, 2222)
	s.node1.Serve(t, cluster.UDP, 2222)
	for _, f := range s.FamilyList() {
		s.client.Get(t, cluster.TCP, s.node1.At(f, 2222), slowly)
		for _, proto := range []cluster.Protocol{cluster.TCP, cluster.UDP} {
			vip := svc.At(f, port{Protocol: proto, Number: 2222})
			refuses(t, s.client.Host, proto, vip)
			if cluster.Balancing() && proto == cluster.UDP { // sending fails
				if r := s.node1.Probe(proto, vip, slowly); r.Outcome == cluster.Answered || r.Outcome == cluster.Timeout {
					t.Errorf("node-1 -> %s: want an immediate error, got %s", vip, r)
				}
			} else {
				refuses(t, s.node1.Host, proto, vip)
			}
			refuses(t, s.outside, proto, vip)
		}
	}
	s.client.MustRun(t, "ping", "-c1", "-W5", svc.Spec.ClusterIPs[0])
	s.client.MustRun(t, "ping", "-c1", "-W5", svc.Spec.ClusterIPs[1])
}

func (s *stage) ownSource(t *testing.T) {
	for _, f := range s.FamilyList() {
		got := s.node1.Get(t, cluster.TCP, s.otherNode.At(f, http.Target), slowly)
		wantReply(t, got, "web-2", s.node1.Addr(f))
		if local := s.node1.Get(t, cluster.TCP, s.sameNode.At(f, http.Target), slowly); local.Source != s.node1.Addr(f) {
			t.Errorf("the pod saw the node as %s, want %s", local.Source, s.node1.Addr(f))
		}
	}
}

func (s *stage) hostProcess(t *testing.T) {
	local := s.service(t, `
metadata: {name: host-local}
---
endpoints: [{addresses: [web-1]}]`)
	remote := s.service(t, `
metadata: {name: host-remote}
---
endpoints: [{addresses: [web-2]}]`)
	s.everyPort(t, func(t *testing.T, f cluster.Family, p port) {
		wantReply(t, s.node1.Get(t, p.Protocol, local.At(f, p), slowly), "web-1", s.node1.Addr(f))
		wantReply(t, s.node1.Get(t, p.Protocol, remote.At(f, p), slowly), "web-2", s.node1.Addr(f))
	})
}

func (s *stage) hairpin(t *testing.T) {
	svc := s.service(t, `
metadata: {name: hairpin}
---
endpoints: [{addresses: [web-1]}]`)
	s.everyPort(t, func(t *testing.T, f cluster.Family, p port) {
		got := s.sameNode.Get(t, p.Protocol, svc.At(f, p), slowly)
		if got.Server != "web-1" || got.Source == s.sameNode.Addr(f) {
			t.Fatalf("want web-1 to see its node as the source, got %+v", got)
		}
	})
}

func (s *stage) sharedConnections(t *testing.T) {
	svc := s.service(t, `
metadata: {name: shared}
---
endpoints: [{addresses: [web-1]}, {addresses: [web-2]}]`)
	s.everyPort(t, func(t *testing.T, f cluster.Family, p port) {
		wantEvenly(t, "round robin over two pods", s.client.Spread(t, 20, p.Protocol, svc.At(f, p), slowly))
	})
}

func wantEvenly(t *testing.T, what string, counts map[string]int) {
	t.Helper()
	both := counts["web-1"] > 0 && counts["web-2"] > 0
	if !both || !cluster.Balancing() && (counts["web-1"] != 10 || counts["web-2"] != 10) {
		t.Errorf("%s: %v", what, counts)
	}
}

func (s *stage) outsideClient(t *testing.T) {
	svc := s.service(t, `
metadata: {name: outside}
---
endpoints: [{addresses: [web-2]}]`)
	s.everyPort(t, func(t *testing.T, f cluster.Family, p port) {
		wantReply(t, s.outside.Get(t, p.Protocol, svc.At(f, p), slowly), "web-2", s.node1.Addr(f))
	})
}

func (s *stage) podToOtherNode(t *testing.T) {
	svc := s.service(t, `
metadata: {name: other-node}
---
endpoints: [{addresses: [web-2]}]`)
	s.everyPort(t, func(t *testing.T, f cluster.Family, p port) {
		got := s.client.Get(t, p.Protocol, svc.At(f, p), slowly)
		wantReply(t, got, "web-2", s.client.Addr(f))
	})
}
