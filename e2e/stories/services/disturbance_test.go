package services

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// TestDisturbances is about pods, agents and rules that go away while clients go on.
func TestDisturbances(t *testing.T) {
	s := onStage(t)

	t.Run("a rolling update loses no request", func(t *testing.T) {
		// proves: 123, 124, 134, 135, 136
		s.rollingUpdate(t)
	})
	t.Run("chains and jumps that somebody deleted come back", func(t *testing.T) {
		// proves: 80
		s.deletedChains(t)
	})
	t.Run("the agent restarts under load, with every kind of Service", func(t *testing.T) {
		// proves: 8
		s.restartAll(t)
	})
	t.Run("killed while an endpoint drains", func(t *testing.T) {
		// proves: 150
		s.killedWhileDraining(t)
	})
	t.Run("a host firewall that drops by default", func(t *testing.T) {
		// proves: 152
		s.hostFirewall(t)
	})
	t.Run("pages that monitoring asks for, and a setting of connection tracking", func(t *testing.T) {
		// proves: 79, 139
		page, err := s.outside.HTTPGet("http://"+s.node1.At(cluster.V4, 10256)+"/healthz", slowly)
		if err != nil || page.Status != 200 || !strings.Contains(page.Body, "lastUpdated") {
			t.Errorf("/healthz: %+v, %v", page, err)
		}
		page, err = s.node1.HTTPGet("http://127.0.0.1:10249/proxyMode", slowly)
		if err != nil || page.Status != 200 || page.Body != "ipvs" {
			t.Errorf("/proxyMode: %+v, %v", page, err)
		}
		if hour, err := s.node1.Sysctl("net.netfilter.nf_conntrack_tcp_timeout_close_wait"); err != nil || hour != "3600" {
			t.Errorf("nf_conntrack_tcp_timeout_close_wait is %q, want 3600 (%v)", hour, err)
		}
	})
}

// rollingUpdate replaces the pods of a Service one after the other, as a Deployment does: the new pod is ready before the old
// one terminates, and the old one serves until it is gone.
func (s *stage) rollingUpdate(t *testing.T) {
	pod := func(node *cluster.Node, name string) *cluster.Pod {
		p := node.Pod(t, name)
		t.Cleanup(func() { _ = p.Delete() })
		p.Serve(t, cluster.TCP, http.target)
		return p
	}
	pods := []*cluster.Pod{pod(s.node1, "roll-1a"), pod(s.node2, "roll-2a")}
	endpoints := func(more ...endpoint) (all []endpoint) {
		for _, p := range pods {
			all = append(all, podEndpoint(p))
		}
		return append(all, more...)
	}
	whole := s.defineBalancer("rolling", endpoints()...)
	whole.ports = []port{http}
	local := s.defineBalancer("rolling-local", endpoints()...).with(externalLocal)
	local.ports = []port{http}
	s.create(t, whole)
	s.create(t, local)
	var clients []*asking
	ask := func(from *cluster.Host, at string) {
		from.Await(t, patience, cluster.TCP, at)
		clients = append(clients, keepAsking(t, from, http, at))
	}
	ask(s.outside, whole.atNode(s.node3, cluster.V4))
	ask(s.outside, whole.atBalancer(cluster.V6, http))
	ask(s.farClient.Host, whole.at(cluster.V4, http))
	ask(s.outside, local.atBalancer(cluster.V4, http))
	ask(s.otherOutside, local.atNode(s.node2, cluster.V6))
	apply := func(all ...endpoint) {
		t.Helper()
		s.change(t, whole.to(all...))
		s.change(t, local.to(all...))
		for _, node := range s.Nodes[:2] {
			for _, f := range s.FamilyList() {
				var here []string
				for _, e := range all {
					if e.node == node.Name && e.state == "" {
						here = append(here, e.host.At(f, http.target))
					}
				}
				s.awaitTable(t, node, cluster.VirtualKey(cluster.TCP, local.atBalancer(f, http)), here)
			}
		}
	}
	for i, old := range pods {
		pods[i] = pod(old.Node, strings.Replace(old.Name, "a", "b", 1))
		apply(endpoints(podEndpoint(old))...)
		apply(endpoints(podEndpoint(old).as("terminating"))...)
		// The terminating pod can be connected to, and connect itself. (Not always at the first try: this client has just made
		// thousands of connections through the Service to this very pod, and a direct one that happens to get the port of one
		// of them is taken for it. See docs/known-limits.md.)
		if got := s.farClient.Await(t, patience, cluster.TCP, old.At(cluster.V4, http.target)); got.Server != old.Name {
			t.Errorf("%s: %s answered instead", old.Name, got.Server)
		}
		old.Get(t, cluster.TCP, whole.at(cluster.V4, http), slowly)
		apply(endpoints()...)
		for _, c := range clients {
			c.awaitMore(t, 3)
		}
		if err := old.Delete(); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range clients {
		c.mustNeverFail(t)
	}
}

func (s *stage) deletedChains(t *testing.T) {
	svc := s.defineNodePort("chains", podEndpoint(s.otherNode))
	s.create(t, svc)
	s.restartAgent(t, s.node3, "--ipvs-sync-period", "2s")
	for _, iptables := range []string{"iptables", "ip6tables"} {
		rules := func() string { return withoutCounters(s.node3.MustRun(t, iptables+"-save")) }
		var before string
		cluster.Eventually(t, patience, iptables+" holds our chains", func() error {
			before = rules()
			if !strings.Contains(before, "KUBE-IPVS-FILTER") {
				return fmt.Errorf("only:\n%s", before)
			}
			return nil
		})
		for _, table := range []string{"nat", "filter", "mangle"} {
			// In one step: between a flush and a deletion the agent may have brought them back.
			s.node3.MustRun(t, "sh", "-c", "printf '*"+table+"\\nCOMMIT\\n' | "+iptables+"-restore -w")
		}
		cluster.Eventually(t, patience, iptables+" is as it was", func() error {
			if now := rules(); now != before {
				return fmt.Errorf("%s\nit was:\n%s", now, before)
			}
			return nil
		})
	}
	for _, f := range s.FamilyList() {
		reach(t, s.outside, http, svc.atNode(s.node3, f), "web-2", s.node3.Addr(f))
		reach(t, s.farClient.Host, http, svc.at(f, http), "web-2", s.farClient.Addr(f))
	}
}

// withoutCounters leaves out what changes by itself: comments with the time, and the counters of built-in chains.
func withoutCounters(save string) string {
	var lines []string
	for line := range strings.Lines(save) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		before, _, _ := strings.Cut(line, " [")
		lines = append(lines, strings.TrimSpace(before))
	}
	return strings.Join(lines, "\n")
}

func (s *stage) restartAll(t *testing.T) {
	svc := s.defineBalancer("restart-all", podEndpoint(s.sameNode), podEndpoint(s.otherNode)).
		with(fmt.Sprintf(`loadBalancerSourceRanges: ["%s/32", "%s/128"]`, s.outside.V4, s.outside.V6))
	s.create(t, svc)
	local := s.defineNodePort("restart-local", podEndpoint(s.sameNode)).with(externalLocal)
	s.create(t, local)
	config := cluster.FlowConfig{Within: patience, Every: 300 * time.Millisecond}
	var flows []*cluster.Flows
	var clients []*asking
	for _, f := range s.FamilyList() {
		for _, at := range []string{svc.atBalancer(f, http), svc.atNode(s.node1, f), local.atNode(s.node1, f)} {
			s.outside.Await(t, patience, cluster.TCP, at)
			flows = append(flows, s.outside.OpenFlows(t, 3, cluster.TCP, at, config))
		}
		for _, at := range []string{svc.atBalancer(f, dns), local.atNode(s.node1, f)} {
			s.outside.Await(t, patience, cluster.UDP, at)
			clients = append(clients, keepAsking(t, s.outside, dns, at))
		}
	}
	for _, end := range []func(){s.agents[s.node1].Kill, func() {
		if err := s.agents[s.node1].Stop(patience); err != nil {
			t.Errorf("SIGTERM: %v", err)
		}
	}} {
		end()
		for _, c := range clients {
			c.awaitMore(t, 2)
		}
		s.startAgent(t, s.node1)
		s.agents[s.node1].AwaitLog(t, patience, "initial sync complete")
		for _, c := range clients {
			c.awaitMore(t, 2)
		}
	}
	for _, f := range flows {
		f.AwaitRound(t, patience)
		f.MustBeUnharmed(t)
	}
	for _, c := range clients {
		c.mustNeverFail(t)
	}
}

func (s *stage) killedWhileDraining(t *testing.T) {
	dead := s.node2.Pod(t, "dies")
	t.Cleanup(func() { _ = dead.Delete() })
	dead.Serve(t, cluster.TCP, http.target)
	svc := s.define("drained", podEndpoint(s.sameNode), podEndpoint(dead))
	svc.ports = []port{http}
	s.create(t, svc)
	s.restartAgent(t, s.node3, "--drain-timeout", "30s")
	var held *cluster.Conn
	for held == nil || held.Server != dead.Name {
		held = s.farClient.Open(t, cluster.TCP, svc.at(cluster.V4, http), slowly)
	}
	s.apply(t, svc.to(podEndpoint(s.sameNode)).slices())
	key := serverKey(svc.ips[0], http)
	drainingToo := []string{s.sameNode.At(cluster.V4, http.target), dead.At(cluster.V4, http.target) + draining}
	s.awaitTable(t, s.node3, key, drainingToo)
	s.agents[s.node3].Kill()
	s.startAgent(t, s.node3, "--drain-timeout", "10s")
	s.agents[s.node3].AwaitLog(t, patience, "initial sync complete")
	s.awaitTable(t, s.node3, key, drainingToo)
	held.MustPing(t)
	// The node dies: nobody will ever end the connection, and IPVS remembers it for 15 minutes.
	if err := dead.Delete(); err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(t, patience, "the drained endpoint goes in time", func() error {
		servers, err := s.node3.VirtualServers()
		if n := len(servers[key].Weights); err == nil && n != 1 {
			err = fmt.Errorf("%d destinations", n)
		}
		return err
	})
}

// hostFirewall lets only answers, its own processes and neighbours' questions into node-3.
func (s *stage) hostFirewall(t *testing.T) {
	svc := s.defineBalancer("firewalled-host", podEndpoint(s.otherNode))
	s.create(t, svc)
	s.sendBalancerTo(t, svc, s.node3)
	s.node3.Serve(t, cluster.TCP, 2222)
	for _, f := range s.FamilyList() {
		s.outside.Await(t, patience, cluster.TCP, svc.atBalancer(f, http))
		iptables := map[cluster.Family]string{cluster.V4: "iptables", cluster.V6: "ip6tables"}[f]
		icmp := map[cluster.Family]string{cluster.V4: "icmp", cluster.V6: "ipv6-icmp"}[f]
		rules := [][]string{
			{"INPUT", "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED", "-j", "ACCEPT"},
			{"INPUT", "-i", "lo", "-j", "ACCEPT"},
			{"INPUT", "-p", icmp, "-j", "ACCEPT"},
		}
		for _, rule := range rules {
			s.node3.MustRun(t, append([]string{iptables, "-w", "-A"}, rule...)...)
		}
		s.node3.MustRun(t, iptables, "-w", "-P", "INPUT", "DROP")
		t.Cleanup(func() {
			_, _ = s.node3.Run(iptables, "-w", "-P", "INPUT", "ACCEPT")
			for _, rule := range rules {
				_, _ = s.node3.Run(append([]string{iptables, "-w", "-D"}, rule...)...)
			}
		})
		becomes(t, s.outside, http, svc.atBalancer(f, http), cluster.Timeout)
	}
	s.restartAgent(t, s.node3, "--accept-service-traffic")
	for _, f := range s.FamilyList() {
		settles(t, s.outside, http, svc.atBalancer(f, http), "web-2", s.node3.Addr(f))
		settles(t, s.outside, dns, svc.atNode(s.node3, f), "web-2", s.node3.Addr(f))
		settles(t, s.farClient.Host, http, svc.at(f, http), "web-2", s.farClient.Addr(f))
		s.outside.MustTimeout(t, cluster.TCP, s.node3.At(f, 2222))
	}
}
