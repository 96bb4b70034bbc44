package services

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

func TestClusterIP(t *testing.T) {
	s := onStage(t)

	t.Run("pod to pod on the same node keeps its source", func(t *testing.T) {
		// proves: 59, 60, 61, 91, 92, 93
		svc := s.service(t, "same-node", podEndpoint(s.sameNode))
		s.everyPort(t, func(t *testing.T, f cluster.Family, p port) {
			got := s.client.Get(t, p.protocol, svc.at(f, p), slowly)
			wantReply(t, got, "web-1", s.client.Addr(f))
		})
	})

	t.Run("pod to pod on another node keeps its source", func(t *testing.T) {
		// proves: 4, 59, 60, 61, 91, 92, 93
		svc := s.service(t, "other-node", podEndpoint(s.otherNode))
		s.everyPort(t, func(t *testing.T, f cluster.Family, p port) {
			got := s.client.Get(t, p.protocol, svc.at(f, p), slowly)
			wantReply(t, got, "web-2", s.client.Addr(f))
		})
	})

	t.Run("a process of the host is seen as its node", func(t *testing.T) {
		// proves: 62, 63, 64, 94, 95
		local, remote := s.service(t, "host-local", podEndpoint(s.sameNode)), s.service(t, "host-remote", podEndpoint(s.otherNode))
		s.everyPort(t, func(t *testing.T, f cluster.Family, p port) {
			wantReply(t, s.node1.Get(t, p.protocol, local.at(f, p), slowly), "web-1", s.node1.Addr(f))
			wantReply(t, s.node1.Get(t, p.protocol, remote.at(f, p), slowly), "web-2", s.node1.Addr(f))
		})
	})

	t.Run("a client outside is seen as the node it came through", func(t *testing.T) {
		svc := s.service(t, "outside", podEndpoint(s.otherNode))
		s.everyPort(t, func(t *testing.T, f cluster.Family, p port) {
			wantReply(t, s.outside.Get(t, p.protocol, svc.at(f, p), slowly), "web-2", s.node1.Addr(f))
		})
	})

	t.Run("a pod reaches itself through its Service", func(t *testing.T) {
		// proves: 5, 65, 66, 67, 96, 97
		svc := s.service(t, "hairpin", podEndpoint(s.sameNode))
		s.everyPort(t, func(t *testing.T, f cluster.Family, p port) {
			got := s.sameNode.Get(t, p.protocol, svc.at(f, p), slowly)
			if got.Server != "web-1" || got.Source == s.sameNode.Addr(f) {
				t.Fatalf("want web-1 to see its node as the source, got %+v", got)
			}
		})
	})

	t.Run("the node's own packets to pods do not take a virtual address as source", func(t *testing.T) {
		for _, f := range s.FamilyList() {
			got := s.node1.Get(t, cluster.TCP, s.otherNode.At(f, http.target), slowly)
			wantReply(t, got, "web-2", s.node1.Addr(f))
			if local := s.node1.Get(t, cluster.TCP, s.sameNode.At(f, http.target), slowly); local.Source != s.node1.Addr(f) {
				t.Errorf("the pod saw the node as %s, want %s", local.Source, s.node1.Addr(f))
			}
		}
	})

	t.Run("a Service without endpoints refuses at once", func(t *testing.T) {
		// proves: 31, 32
		svc := s.service(t, "empty")
		for _, f := range s.FamilyList() {
			for _, from := range []*cluster.Host{s.client.Host, s.node1.Host, s.outside} {
				from.MustRefuse(t, cluster.TCP, svc.at(f, http), slowly)
				if from != s.node1.Host {
					from.MustRefuse(t, cluster.UDP, svc.at(f, dns), slowly)
				}
			}
			// IPVS meets the host's own packets where they are sent, so that sending itself fails.
			if r := s.node1.Probe(cluster.UDP, svc.at(f, dns), slowly); r.Outcome != cluster.Filtered && r.Outcome != cluster.Refused {
				t.Errorf("%s, UDP from the host: want an error at once, got %s", f, r)
			}
		}
		// No ICMPv6 error makes an SCTP client fail: documented in docs/architecture.md.
		if r := s.client.Probe(cluster.SCTP, svc.at(cluster.V4, diam), slowly); r.Outcome == cluster.Answered || r.Outcome == cluster.Timeout {
			t.Errorf("SCTP over IPv4: want an error at once, got %s", r)
		}
	})

	t.Run("the host's own ports are closed on virtual addresses, ping works", func(t *testing.T) {
		svc := s.service(t, "closed", podEndpoint(s.otherNode))
		s.node1.Serve(t, cluster.TCP, 2222)
		s.node1.Serve(t, cluster.UDP, 2222)
		for _, f := range s.FamilyList() {
			s.client.Get(t, cluster.TCP, s.node1.At(f, 2222), slowly) // the daemon is there
			for _, proto := range []cluster.Protocol{cluster.TCP, cluster.UDP} {
				vip := svc.at(f, port{protocol: proto, port: 2222})
				s.client.MustRefuse(t, proto, vip, slowly)
				s.node1.MustRefuse(t, proto, vip, slowly)
				s.outside.MustRefuse(t, proto, vip, slowly)
			}
		}
		s.client.MustRun(t, "ping", "-c1", "-W5", svc.ips[0])
		s.client.MustRun(t, "ping", "-c1", "-W5", svc.ips[1])
	})

	t.Run("endpoints share the connections", func(t *testing.T) {
		svc := s.service(t, "shared", podEndpoint(s.sameNode), podEndpoint(s.otherNode))
		s.everyPort(t, func(t *testing.T, f cluster.Family, p port) {
			counts := s.client.Spread(t, 10, p.protocol, svc.at(f, p), slowly)
			if counts["web-1"] != 5 || counts["web-2"] != 5 {
				t.Errorf("round robin over two pods: %v", counts)
			}
		})
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
	t.Run("objects that are not ours to serve", func(t *testing.T) {
		// proves: 29
		s.leftAlone(t)
	})
	t.Run("an endpoint that would loop is refused, the others serve", func(t *testing.T) { s.badEndpoint(t) })
	t.Run("an endpoint that is another Service's address is refused, the others serve", func(t *testing.T) { s.virtualEndpoint(t) })
	t.Run("killed and started again under open connections", func(t *testing.T) { s.restart(t) })
	t.Run("the API server away and back", func(t *testing.T) {
		// proves: 9
		s.apiAway(t)
	})
}

func (s *stage) slices(t *testing.T) {
	s.otherNode.Serve(t, cluster.TCP, 9090)
	svc := s.service(t, "slices", podEndpoint(s.sameNode))
	second := svc
	second.ports = []port{{name: "http", protocol: cluster.TCP, port: 80, target: 9090}}
	more := second.slice("slices-more", cluster.V4, []endpoint{podEndpoint(s.otherNode)}) +
		svc.slice("slices-twin", cluster.V4, []endpoint{podEndpoint(s.sameNode).as("dead")})
	s.apply(t, more)
	defer s.remove(t, more)
	s.awaitTable(t, s.node1, serverKey(svc.ips[0], http), []string{
		s.sameNode.At(cluster.V4, 8080),
		s.otherNode.At(cluster.V4, 9090),
	})
	counts := s.client.Spread(t, 10, cluster.TCP, svc.at(cluster.V4, http), slowly)
	if counts["web-1"] != 5 || counts["web-2"] != 5 {
		t.Errorf("want both slices' endpoints to answer: %v", counts)
	}
}

func (s *stage) conditions(t *testing.T) {
	svc := s.service(t, "conditions", podEndpoint(s.sameNode), podEndpoint(s.otherNode).as("unready"))
	only := func(name string) {
		t.Helper()
		for _, f := range s.FamilyList() {
			if counts := s.client.Spread(t, 4, cluster.TCP, svc.at(f, http), slowly); counts[name] != 4 {
				t.Errorf("%s: want only %s to answer: %v", f, name, counts)
			}
		}
	}
	only("web-1")
	svc.endpoints = []endpoint{podEndpoint(s.sameNode).as("terminating"), podEndpoint(s.otherNode)}
	s.apply(t, svc.slices())
	s.awaitService(t, svc)
	only("web-2")
	// Nobody is ready: who still serves while it terminates gets the connections.
	svc.endpoints = []endpoint{podEndpoint(s.sameNode).as("terminating"), podEndpoint(s.otherNode).as("dead")}
	s.apply(t, svc.slices())
	s.awaitTable(t, s.node1, serverKey(svc.ips[0], http), []string{s.sameNode.At(cluster.V4, 8080)})
	s.awaitTable(t, s.node1, serverKey(svc.ips[1], http), []string{s.sameNode.At(cluster.V6, 8080)})
	only("web-1")
}

func (s *stage) drain(t *testing.T) {
	svc := s.service(t, "drain", podEndpoint(s.otherNode))
	var open []*cluster.Conn
	for _, f := range s.FamilyList() {
		c := s.client.Open(t, cluster.TCP, svc.at(f, http), slowly)
		c.MustPing(t)
		open = append(open, c)
	}
	svc.endpoints = []endpoint{podEndpoint(s.sameNode), podEndpoint(s.otherNode).as("terminating")}
	s.apply(t, svc.slices())
	// Each family has a slice of its own, which arrives on its own.
	for i, f := range s.FamilyList() {
		s.awaitTable(t, s.node1, serverKey(svc.ips[i], http), []string{
			s.sameNode.At(f, 8080),
			s.otherNode.At(f, 8080) + draining,
		})
	}
	for _, c := range open {
		if got := c.MustPing(t); got.Server != "web-2" {
			t.Errorf("the open connection moved to %s", got.Server)
		}
		c.Close()
	}
	for _, f := range s.FamilyList() {
		if got := s.client.Get(t, cluster.TCP, svc.at(f, http), slowly); got.Server != "web-1" {
			t.Errorf("%s: a new connection reached %s, which is terminating", f, got.Server)
		}
	}
}

func (s *stage) lifecycle(t *testing.T) {
	svc := s.service(t, "life", podEndpoint(s.sameNode))
	s.client.Get(t, cluster.TCP, svc.at(cluster.V4, http), slowly)

	// Another port in the place of the first.
	changed := svc
	changed.ports = []port{{name: "http", protocol: cluster.TCP, port: 81, target: 8080}, dns, diam}
	s.apply(t, changed.manifest())
	s.awaitService(t, changed)
	s.awaitTable(t, s.node1, serverKey(svc.ips[0], http), nil)
	s.client.Get(t, cluster.TCP, changed.at(cluster.V6, changed.ports[0]), slowly)
	s.client.MustRefuse(t, cluster.TCP, svc.at(cluster.V4, http), slowly)
	s.client.MustRefuse(t, cluster.TCP, svc.at(cluster.V6, http), slowly)

	s.remove(t, changed.manifest())
	for _, ip := range svc.ips {
		s.awaitTable(t, s.node1, serverKey(ip, changed.ports[0]), nil)
		cluster.Eventually(t, patience, ip+" is released", func() error {
			out, err := s.node1.Run("ip", "-o", "addr", "show", "dev", "kube-ipvs0", "to", ip)
			if err == nil && strings.TrimSpace(out) != "" {
				err = fmt.Errorf("still there: %s", out)
			}
			return err
		})
	}

	// The same address comes back with other endpoints.
	svc.endpoints = []endpoint{podEndpoint(s.otherNode)}
	s.create(t, svc)
	s.everyPort(t, func(t *testing.T, f cluster.Family, p port) {
		wantReply(t, s.client.Get(t, p.protocol, svc.at(f, p), slowly), "web-2", s.client.Addr(f))
	})
}

func (s *stage) affinity(t *testing.T) {
	svc := s.define("sticky", podEndpoint(s.sameNode), podEndpoint(s.otherNode))
	svc.ports, svc.affinity = []port{http}, 600
	s.create(t, svc)
	for _, f := range s.FamilyList() {
		if counts := s.client.Spread(t, 6, cluster.TCP, svc.at(f, http), slowly); len(counts) != 1 {
			t.Errorf("%s: one client reached several pods: %v", f, counts)
		}
	}
	svc.affinity = 0
	s.apply(t, svc.object())
	cluster.Eventually(t, patience, "affinity is off", func() error {
		servers, err := s.node1.VirtualServers()
		if err == nil && servers[serverKey(svc.ips[0], http)].Persistent {
			err = errors.New("still persistent")
		}
		return err
	})
	if counts := s.client.Spread(t, 6, cluster.TCP, svc.at(cluster.V6, http), slowly); len(counts) != 2 {
		t.Errorf("affinity is off, but one pod got everything: %v", counts)
	}
}

func (s *stage) leftAlone(t *testing.T) {
	other := s.service(t, "other-proxy", podEndpoint(s.sameNode))
	labelled := other
	labelled.labels = "service.kubernetes.io/service-proxy-name: somebody-else"
	s.apply(t, labelled.object())
	s.awaitTable(t, s.node1, serverKey(other.ips[0], http), nil)
	s.apply(t, other.object()) // the label goes: ours again
	s.awaitService(t, other)

	quiet := `
apiVersion: v1
kind: Service
metadata: {name: headless}
spec: {clusterIP: None, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: external}
spec: {type: ExternalName, externalName: example.org}
---`
	before := s.node1.MustRun(t, "ipvsadm", "-Sn")
	s.apply(t, quiet)
	defer s.remove(t, quiet)
	marker := s.service(t, "marker", podEndpoint(s.sameNode)) // when this is served, the others have been seen, too
	after := s.node1.MustRun(t, "ipvsadm", "-Sn")
	for line := range strings.Lines(after) {
		if !strings.Contains(before, line) && !strings.Contains(line, marker.ips[0]) && !strings.Contains(line, marker.ips[1]) {
			t.Errorf("a Service that is not ours to serve made %s", line)
		}
	}
}

func (s *stage) badEndpoint(t *testing.T) {
	svc := s.service(t, "bad", podEndpoint(s.sameNode))
	// The API server refuses loopback and link-local addresses in slices of type IPv4, but not all that would loop.
	bad := strings.Replace(svc.slice("bad-more", cluster.V4, []endpoint{podEndpoint(s.otherNode)}),
		s.otherNode.V4.String(), "255.255.255.255", 1)
	s.apply(t, bad)
	defer s.remove(t, bad)
	s.agents[s.node1].AwaitLog(t, patience, "255.255.255.255")
	s.awaitService(t, svc)
	s.client.Get(t, cluster.TCP, svc.at(cluster.V4, http), slowly)
}

// virtualEndpoint gives a Service an endpoint at an address that every node has for another Service. Served, its connections would
// meet the process of the node that listens on that port at all addresses.
func (s *stage) virtualEndpoint(t *testing.T) {
	other, svc := s.service(t, "bound", podEndpoint(s.otherNode)), s.service(t, "leads-to-bound", podEndpoint(s.sameNode))
	s.node1.Serve(t, http.protocol, http.target)
	for _, f := range s.FamilyList() {
		name, address := fmt.Sprintf("leads-to-bound-more-v%d", f), netip.MustParseAddrPort(other.at(f, http)).Addr().String()
		bad := strings.Replace(svc.slice(name, f, []endpoint{podEndpoint(s.otherNode)}), s.otherNode.Addr(f).String(), address, 1)
		s.apply(t, bad)
		t.Cleanup(func() { s.remove(t, bad) })
		s.agents[s.node1].AwaitLog(t, patience, name)
		s.awaitService(t, svc)
		for _, from := range []*cluster.Host{s.client.Host, s.node1.Host} {
			if counts := from.Spread(t, 10, http.protocol, svc.at(f, http), slowly); counts["web-1"] != 10 {
				t.Errorf("%s from %s: want every answer from the endpoint that is a pod, got %v", f, from.Name, counts)
			}
		}
		s.awaitEvent(t, svc, name+" endpoints[0].addresses", address)
	}
}

// awaitEvent waits for a warning about a Service with these words.
func (s *stage) awaitEvent(t *testing.T, svc service, words ...string) {
	t.Helper()
	client, err := kubernetes.NewForConfig(s.api.Client())
	if err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(t, patience, fmt.Sprintf("an Event of Service %s says %q", svc.name, words), func() error {
		events, err := client.EventsV1().Events("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		var notes []string
		for _, e := range events.Items {
			if e.Regarding.Name != svc.name || e.Type != corev1.EventTypeWarning {
				continue
			}
			if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(e.Note, w) }) {
				return nil
			}
			notes = append(notes, e.Note)
		}
		return fmt.Errorf("there are %q", notes)
	})
}

func (s *stage) restart(t *testing.T) {
	svc := s.service(t, "restart", podEndpoint(s.sameNode), podEndpoint(s.otherNode))
	flows := s.client.OpenFlows(t, 40, cluster.TCP, svc.at(cluster.V4, http), cluster.FlowConfig{Within: 20 * time.Second, Every: 500 * time.Millisecond})
	flows6 := s.client.OpenFlows(t, 40, cluster.TCP, svc.at(cluster.V6, http), cluster.FlowConfig{Within: 20 * time.Second, Every: 500 * time.Millisecond})
	for range 3 {
		s.agents[s.node1].Kill()
		s.client.Get(t, cluster.TCP, svc.at(cluster.V4, http), slowly) // the kernel goes on serving
		s.startAgent(t, s.node1)
		s.agents[s.node1].AwaitLog(t, patience, "initial sync complete")
		flows.AwaitRound(t, patience)
		flows6.AwaitRound(t, patience)
	}
	flows.MustBeUnharmed(t)
	flows6.MustBeUnharmed(t)
}

func (s *stage) apiAway(t *testing.T) {
	svc := s.service(t, "away", podEndpoint(s.sameNode))
	s.api.StopAPIServer()
	for range 3 {
		s.client.Get(t, cluster.TCP, svc.at(cluster.V4, http), slowly)
	}
	if err := s.api.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	svc.endpoints = []endpoint{podEndpoint(s.otherNode)}
	s.apply(t, svc.slices())
	s.awaitService(t, svc)
	wantReply(t, s.client.Get(t, cluster.TCP, svc.at(cluster.V6, http), slowly), "web-2", s.client.V6)
}
