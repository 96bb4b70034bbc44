package services

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// sendBalancerTo makes the router send a Service's load balancer addresses to a node until the test ends.
func (s *stage) sendBalancerTo(t *testing.T, svc service, node *cluster.Node) {
	t.Helper()
	for _, ip := range svc.balancer {
		s.RouteVia(t, ip, node)
		t.Cleanup(func() {
			if _, err := s.Router.Run("ip", "route", "del", netip.MustParseAddr(ip).String()); err != nil {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestLoadBalancer(t *testing.T) {
	s := onStage(t)

	t.Run("reached from pods, nodes and outside", func(t *testing.T) {
		svc := s.defineBalancer("lb", podEndpoint(s.otherNode))
		s.create(t, svc)
		s.everyPort(t, func(t *testing.T, f cluster.Family, p port) {
			at := svc.atBalancer(f, p)
			reach(t, s.outside, p, at, "web-2", s.node1.Addr(f))
			reach(t, s.client.Host, p, at, "web-2", s.node1.Addr(f))
			reach(t, s.farClient.Host, p, at, "web-2", s.node3.Addr(f))
			reach(t, s.node1.Host, p, at, "web-2", s.node1.Addr(f))
			reach(t, s.outside, p, svc.atNode(s.node3, f), "web-2", s.node3.Addr(f))
		})
	})

	t.Run("an address of mode Proxy goes through the load balancer, a host name means nothing", func(t *testing.T) {
		svc := s.defineBalancer("lb-proxy", podEndpoint(s.otherNode))
		proxy := "203.0.113.250"
		svc.status = fmt.Sprintf(`{ip: %q, ipMode: VIP}, {ip: %q, ipMode: Proxy}, {hostname: lb.example.org}`, svc.balancer[0], proxy)
		s.otherOutside.AddAddr(t, "eth0", proxy)
		s.otherOutside.Serve(t, cluster.TCP, http.port, cluster.As("load-balancer"))
		s.Router.MustRun(t, "ip", "route", "add", proxy+"/32", "via", s.otherOutside.V4.String())
		t.Cleanup(func() { _, _ = s.Router.Run("ip", "route", "del", proxy+"/32") })
		s.create(t, svc)
		reach(t, s.client.Host, http, svc.atBalancer(cluster.V4, http), "web-2", s.node1.V4)
		if got := s.client.Get(t, cluster.TCP, proxy+":80", slowly); got.Server != "load-balancer" {
			t.Errorf("a pod that uses the address of a proxying load balancer reached %s", got.Server)
		}
	})

	t.Run("without node ports, then with them", func(t *testing.T) {
		// proves: 120
		svc := s.defineBalancer("lb-portless", podEndpoint(s.otherNode))
		number := svc.nodePort
		svc.nodePort = 0
		svc = svc.with("allocateLoadBalancerNodePorts: false")
		s.create(t, svc)
		for _, f := range s.FamilyList() {
			reach(t, s.outside, http, svc.atBalancer(f, http), "web-2", s.node1.Addr(f))
			s.outside.MustRefuse(t, cluster.TCP, s.node1.At(f, number), slowly)
		}
		svc.nodePort, svc.extra = number, "  allocateLoadBalancerNodePorts: true\n"
		s.change(t, svc)
		for _, f := range s.FamilyList() {
			reach(t, s.outside, http, svc.atBalancer(f, http), "web-2", s.node1.Addr(f))
			reach(t, s.outside, http, svc.atNode(s.node1, f), "web-2", s.node1.Addr(f))
		}
	})

	t.Run("the node's own ports are closed from the first instant, ping works, issue 72236", func(t *testing.T) {
		s.node1.Serve(t, cluster.TCP, 2222)
		svc := s.defineBalancer("lb-72236", podEndpoint(s.otherNode))
		daemon := port{protocol: cluster.TCP, port: 2222}
		stop := make(chan struct{})
		leaked := make(chan string, 1)
		go func() {
			defer close(leaked)
			for {
				select {
				case <-stop:
					return
				default:
				}
				if r := s.client.Probe(cluster.TCP, svc.atBalancer(cluster.V4, daemon), cluster.Within(time.Second)); r.Outcome == cluster.Answered {
					leaked <- r.String()
					return
				}
			}
		}()
		s.create(t, svc)
		for _, f := range s.FamilyList() {
			s.client.Await(t, patience, cluster.TCP, svc.atBalancer(f, http))
			s.client.MustRun(t, "ping", "-c1", "-W5", addrOfPort(svc.atBalancer(f, http)))
			s.outside.MustRun(t, "ping", "-c1", "-W5", addrOfPort(svc.atBalancer(f, http)))
			s.client.MustRefuse(t, cluster.TCP, svc.atBalancer(f, daemon), slowly)
			s.outside.MustRefuse(t, cluster.TCP, svc.atBalancer(f, daemon), slowly)
		}
		close(stop)
		if who := <-leaked; who != "" {
			t.Errorf("a daemon of the node answered at the virtual address: %s", who)
		}
	})

	t.Run("source ranges", func(t *testing.T) {
		// proves: 114
		s.sourceRanges(t)
	})
	// kube-proxy takes entries of one address out of its set and puts them in again at every sync, with a drop in between.
	t.Run("source ranges of one address never open a gap", func(t *testing.T) {
		// proves: 143
		s.steadyRanges(t)
	})
	t.Run("health check port", func(t *testing.T) {
		// proves: 37, 126, 127
		s.healthChecks(t)
	})
}

func addrOfPort(at string) string { return netip.MustParseAddrPort(at).Addr().String() }

// sourceRanges follows upstream's steps: everybody, one pod and its node, both pods, nobody, everybody.
func (s *stage) sourceRanges(t *testing.T) {
	svc := s.defineBalancer("lb-ranges", podEndpoint(s.otherNode))
	s.create(t, svc)
	single := func(hosts ...*cluster.Host) []string {
		var ranges []string
		for _, h := range hosts {
			ranges = append(ranges, h.V4.String()+"/32", h.V6.String()+"/128")
		}
		return ranges
	}
	pod, far, outside := s.client.Host, s.farClient.Host, s.outside
	for _, step := range []struct {
		name   string
		ranges []string
		may    []*cluster.Host
		mayNot []*cluster.Host
	}{
		{"everybody", nil, []*cluster.Host{pod, far, outside, s.node1.Host}, nil},
		{"one pod and its node", single(pod, s.node1.Host), []*cluster.Host{pod, s.node1.Host}, []*cluster.Host{far, outside, s.node3.Host}},
		{"two pods", single(pod, far), []*cluster.Host{pod, far}, []*cluster.Host{outside, s.node1.Host}},
		{"a range around a client", []string{"198.51.100.0/25", "2001:db8:51::/64"}, []*cluster.Host{outside}, []*cluster.Host{pod}},
		{"nobody here", []string{"192.0.2.1/32", "2001:db8:99::1/128"}, nil, []*cluster.Host{pod, far, outside}},
		{"nobody here, and the whole world", []string{"192.0.2.1/32", "0.0.0.0/0", "::/0"}, []*cluster.Host{pod, far, outside}, nil},
		{"one client", single(outside), []*cluster.Host{outside}, []*cluster.Host{pod}},
		{"cleared", nil, []*cluster.Host{pod, far, outside, s.node3.Host}, nil},
	} {
		t.Run(step.name, func(t *testing.T) {
			now := svc
			if step.ranges != nil {
				now = svc.with(`loadBalancerSourceRanges: ["` + strings.Join(step.ranges, `", "`) + `"]`)
			}
			s.change(t, now)
			for _, f := range s.FamilyList() {
				for _, host := range step.may {
					becomes(t, host, http, svc.atBalancer(f, http), cluster.Answered)
					becomes(t, host, dns, svc.atBalancer(f, dns), cluster.Answered)
				}
				for _, host := range step.mayNot {
					eventuallyUnserved(t, host, http, svc.atBalancer(f, http))
				}
				// Ranges are for the load balancer's addresses only.
				becomes(t, far, http, svc.at(f, http), cluster.Answered)
				becomes(t, outside, http, svc.atNode(s.node1, f), cluster.Answered)
			}
		})
	}
}

func (s *stage) steadyRanges(t *testing.T) {
	svc := s.defineBalancer("lb-steady", podEndpoint(s.otherNode), podEndpoint(s.sameNode))
	ranges := func(more string) service {
		return svc.with(fmt.Sprintf(`loadBalancerSourceRanges: ["%s/32", "%s/128"%s]`, s.outside.V4, s.outside.V6, more))
	}
	s.create(t, ranges(""))
	var clients []*asking
	for _, f := range s.FamilyList() {
		s.outside.Await(t, patience, cluster.UDP, svc.atBalancer(f, dns))
		// A lost datagram is a failed request; TCP would send it again.
		clients = append(clients, keepAsking(t, s.outside, dns, svc.atBalancer(f, dns)))
	}
	flows := s.outside.OpenFlows(t, 4, cluster.TCP, svc.atBalancer(cluster.V4, http), cluster.FlowConfig{Within: 20 * time.Second})
	for i := range 4 {
		s.apply(t, ranges(fmt.Sprintf(`, "192.0.2.%d/32"`, i)).object())
		other := s.defineBalancer(fmt.Sprintf("lb-other-%d", i), podEndpoint(s.sameNode)).
			with(`loadBalancerSourceRanges: ["192.0.2.9/32"]`)
		s.create(t, other)
		s.remove(t, other.manifest())
	}
	s.apply(t, ranges("").object())
	s.restartAgent(t, s.node1, "--ipvs-sync-period", "1s")
	flows.AwaitRound(t, patience)
	for _, a := range clients {
		a.mustNeverFail(t)
	}
	flows.MustBeUnharmed(t)
}

// healthAnswer is what a health check port says.
type healthAnswer struct {
	Service             struct{ Namespace, Name string }
	LocalEndpoints      int
	ServiceProxyHealthy bool
}

// healthy waits until a node's health check port says that there are so many endpoints.
func (s *stage) healthy(t *testing.T, svc service, port uint16, node *cluster.Node, endpoints int) {
	t.Helper()
	status := map[bool]int{true: 200, false: 503}[endpoints > 0]
	for _, f := range s.FamilyList() {
		cluster.Eventually(t, patience, fmt.Sprintf("health check of %s at %s: %d endpoints", svc.name, node.Name, endpoints), func() error {
			page, err := s.outside.HTTPGet("http://" + node.At(f, port) + "/healthz")
			if err != nil {
				return err
			}
			var answer healthAnswer
			if err := json.Unmarshal([]byte(page.Body), &answer); err != nil {
				return fmt.Errorf("%q: %w", page.Body, err)
			}
			want := healthAnswer{LocalEndpoints: endpoints, ServiceProxyHealthy: true}
			want.Service.Namespace, want.Service.Name = "default", svc.name
			weight := page.Header.Get("X-Load-Balancing-Endpoint-Weight")
			if page.Status != status || answer != want || weight != fmt.Sprint(endpoints) {
				return fmt.Errorf("status %d, want %d; weight %s; %+v", page.Status, status, weight, answer)
			}
			return nil
		})
	}
}

func (s *stage) healthChecks(t *testing.T) {
	const check = 32001
	svc := s.defineBalancer("lb-health", podEndpoint(s.sameNode), podEndpoint(s.otherNode)).
		with("externalTrafficPolicy: Local").with(fmt.Sprintf("healthCheckNodePort: %d", check))
	s.create(t, svc)
	s.healthy(t, svc, check, s.node1, 1)
	s.healthy(t, svc, check, s.node2, 1)
	s.healthy(t, svc, check, s.node3, 0)

	extra := s.node3.Pod(t, "health-3")
	t.Cleanup(func() { _ = extra.Delete() })
	s.apply(t, svc.to(podEndpoint(s.sameNode), podEndpoint(s.otherNode), podEndpoint(extra)).slices())
	for _, node := range s.Nodes {
		s.healthy(t, svc, check, node, 1)
	}

	// Only a terminating endpoint is left on node-1: no new clients, please, but those that come are served.
	s.apply(t, svc.to(podEndpoint(s.sameNode).as("terminating"), podEndpoint(s.otherNode)).slices())
	s.healthy(t, svc, check, s.node1, 0)
	s.healthy(t, svc, check, s.node3, 0)
	for _, f := range s.FamilyList() {
		reach(t, s.outside, http, svc.atNode(s.node1, f), "web-1", s.outside.Addr(f))
	}
	s.remove(t, svc.manifest())
	for _, f := range s.FamilyList() {
		becomes(t, s.outside, http, s.node1.At(f, check), cluster.Refused)
	}
}
