package services

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// TestDisturbances removes pods, agents and rules while clients keep connecting.
func TestDisturbances(t *testing.T) {
	s := onStage(t)

	t.Run("a rolling update loses no request", func(t *testing.T) {
		// proves: 123, 124, 134, 135, 136
		s.rollingUpdate(t)
	})
	t.Run("the agent restores deleted chains and jumps", func(t *testing.T) {
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
	t.Run("health and mode pages, and a conntrack timeout", func(t *testing.T) {
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

// rollingUpdate replaces the pods of a Service one by one, as a Deployment does: the new pod is ready before the old one
// terminates, and the old one serves until it is deleted.
func (s *stage) rollingUpdate(t *testing.T) {
	pod := func(node *cluster.Node, name string) *cluster.Pod {
		p := node.Pod(t, name)
		t.Cleanup(func() { _ = p.Delete() })
		p.Serve(t, cluster.TCP, http.Target)
		return p
	}
	pods := []*cluster.Pod{pod(s.node1, "roll-1a"), pod(s.node2, "roll-2a")}
	whole := s.service(t, `
metadata: {name: rolling}
spec: {type: LoadBalancer, ports: [{name: http, port: 80, targetPort: 8080}]}
---
endpoints: [{addresses: [roll-1a]}, {addresses: [roll-2a]}]`)
	local := s.service(t, `
metadata: {name: rolling-local}
spec: {type: LoadBalancer, externalTrafficPolicy: Local, ports: [{name: http, port: 80, targetPort: 8080}]}
---
endpoints: [{addresses: [roll-1a]}, {addresses: [roll-2a]}]`)
	var clients []*requests
	ask := func(from *cluster.Host, at string) {
		from.Await(t, patience, cluster.TCP, at)
		clients = append(clients, keepRequesting(t, from, http, at))
	}
	ask(s.outside, whole.AtNode(s.node3, cluster.V4))
	ask(s.outside, whole.AtBalancer(cluster.V6, http))
	ask(s.farClient.Host, whole.At(cluster.V4, http))
	ask(s.outside, local.AtBalancer(cluster.V4, http))
	ask(s.otherOutside, local.AtNode(s.node2, cluster.V6))
	// apply makes the pods ready endpoints, next to the old pod in the given state.
	apply := func(old *cluster.Pod, state string) {
		t.Helper()
		endpoints := fmt.Sprintf("endpoints: [{addresses: [%s]}, {addresses: [%s]}", pods[0].Name, pods[1].Name)
		if old != nil {
			endpoints += fmt.Sprintf(", {addresses: [%s]%s}", old.Name, state)
		}
		whole, local = whole.With(endpoints+"]"), local.With(endpoints+"]")
		s.change(t, whole)
		s.change(t, local)
		for i, node := range s.Nodes[:2] {
			for _, f := range s.FamilyList() {
				here := []string{pods[i].At(f, http.Target)}
				if old != nil && old.Node == node && state == "" {
					here = append(here, old.At(f, http.Target))
				}
				awaitDestinations(t, node, http, local.AtBalancer(f, http), here...)
			}
		}
	}
	for i, old := range pods {
		pods[i] = pod(old.Node, strings.Replace(old.Name, "a", "b", 1))
		apply(old, "")
		apply(old, ", conditions: {ready: false, serving: true, terminating: true}")
		// The terminating pod accepts connections and can connect. Await retries because the first attempt can fail: this client
		// has just made thousands of connections to this pod through the Service, and IPVS can mistake a direct connection from the
		// same client port for one of them. See docs/known-limits.md.
		if got := s.farClient.Await(t, patience, cluster.TCP, old.At(cluster.V4, http.Target)); got.Server != old.Name {
			t.Errorf("%s: %s answered instead", old.Name, got.Server)
		}
		old.Get(t, cluster.TCP, whole.At(cluster.V4, http), slowly)
		apply(nil, "")
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
	svc := s.service(t, `
metadata: {name: chains}
spec: {type: NodePort}
---
endpoints: [{addresses: [web-2]}]`)
	s.restartAgent(t, s.node3, "--ipvs-sync-period", "2s")
	for _, d := range deletions() {
		rules := func() string { return withoutCounters(s.node3.MustRun(t, "sh", "-c", d.show)) }
		var before string
		cluster.Eventually(t, patience, d.show+" holds the agent's chains", func() error {
			before = rules()
			if !strings.Contains(before, "KUBE-IPVS-FILTER") {
				return fmt.Errorf("only:\n%s", before)
			}
			return nil
		})
		for _, script := range d.delete {
			s.node3.MustRun(t, "sh", "-c", script)
		}
		cluster.Eventually(t, patience, d.show+" shows the same rules as before", func() error {
			if now := rules(); now != before {
				return fmt.Errorf("%s\nbefore:\n%s", now, before)
			}
			return nil
		})
	}
	for _, f := range s.FamilyList() {
		reach(t, s.outside, http, svc.AtNode(s.node3, f), "web-2", s.node3.Addr(f))
		reach(t, s.farClient.Host, http, svc.At(f, http), "web-2", s.farClient.Addr(f))
	}
}

// deletion deletes the agent's rules in one step for each table: between a flush and a deletion the agent could restore them.
type deletion struct {
	show   string
	delete []string
}

func deletions() (all []deletion) {
	if cluster.NFTables() {
		return []deletion{{"nft -s -t list table inet kube-ipvs", []string{"nft delete table inet kube-ipvs"}}}
	}
	for _, iptables := range []string{"iptables", "ip6tables"} {
		d := deletion{show: iptables + "-save"}
		for _, table := range []string{"nat", "filter", "mangle"} {
			d.delete = append(d.delete, "printf '*"+table+"\\nCOMMIT\\n' | "+iptables+"-restore -w")
		}
		all = append(all, d)
	}
	return all
}

// withoutCounters removes what changes without a write: comments with the time, and the counters of built-in chains.
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
	svc := s.service(t, `
metadata: {name: restart-all}
spec: {type: LoadBalancer, loadBalancerSourceRanges: [client-1]}
---
endpoints: [{addresses: [web-1]}, {addresses: [web-2]}]`)
	local := s.service(t, `
metadata: {name: restart-local}
spec: {type: NodePort, externalTrafficPolicy: Local}
---
endpoints: [{addresses: [web-1]}]`)
	config := cluster.FlowConfig{Within: patience, Every: 300 * time.Millisecond}
	var flows []*cluster.Flows
	var clients []*requests
	for _, f := range s.FamilyList() {
		for _, at := range []string{svc.AtBalancer(f, http), svc.AtNode(s.node1, f), local.AtNode(s.node1, f)} {
			s.outside.Await(t, patience, cluster.TCP, at)
			flows = append(flows, s.outside.OpenFlows(t, 3, cluster.TCP, at, config))
		}
		for _, at := range []string{svc.AtBalancer(f, dns), local.AtNode(s.node1, f)} {
			s.outside.Await(t, patience, cluster.UDP, at)
			clients = append(clients, keepRequesting(t, s.outside, dns, at))
		}
	}
	for _, stop := range []func(){s.agents[s.node1].Kill, func() {
		if err := s.agents[s.node1].Stop(patience); err != nil {
			t.Errorf("SIGTERM: %v", err)
		}
	}} {
		stop()
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
	cluster.NeedIPVS(t, "nftables does not count connections: an endpoint that leaves is removed immediately, and its connections go on")
	leaving := s.node2.Pod(t, "leaving")
	t.Cleanup(func() { _ = leaving.Delete() })
	leaving.Serve(t, cluster.TCP, http.Target)
	svc := s.service(t, `
metadata: {name: drained}
spec: {ports: [{name: http, port: 80, targetPort: 8080}]}
---
endpoints: [{addresses: [web-1]}, {addresses: [leaving]}]`)
	s.restartAgent(t, s.node3, "--drain-timeout", "30s")
	var held *cluster.Conn
	for held == nil || held.Server != leaving.Name {
		held = s.farClient.Open(t, cluster.TCP, svc.At(cluster.V4, http), slowly)
	}
	s.apply(t, svc.With("endpoints: [{addresses: [web-1]}]").SlicesYAML())
	at := svc.At(cluster.V4, http)
	destinations := []string{s.sameNode.At(cluster.V4, http.Target), leaving.At(cluster.V4, http.Target) + draining}
	awaitDestinations(t, s.node3, http, at, destinations...)
	s.agents[s.node3].Kill()
	s.startAgent(t, s.node3, "--drain-timeout", "10s")
	s.agents[s.node3].AwaitLog(t, patience, "initial sync complete")
	awaitDestinations(t, s.node3, http, at, destinations...)
	held.MustPing(t)
	// The pod disappears without closing the connection, which IPVS tracks for 15 minutes.
	if err := leaving.Delete(); err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(t, patience, "the drained endpoint is removed when the drain timeout ends", func() error {
		servers, err := s.node3.VirtualServers()
		if n := len(servers[cluster.VirtualKey(http.Protocol, at)].Weights); err == nil && n != 1 {
			err = fmt.Errorf("%d destinations", n)
		}
		return err
	})
}

// hostFirewall makes node-3 drop all input except replies, loopback and ICMP.
func (s *stage) hostFirewall(t *testing.T) {
	cluster.NeedIPTables(t, "no rule of one nftables table overrides the drop of another")
	svc := s.service(t, `
metadata: {name: firewalled-host}
spec: {type: LoadBalancer}
---
endpoints: [{addresses: [web-2]}]`)
	s.sendBalancerTo(t, svc, s.node3)
	s.node3.Serve(t, cluster.TCP, 2222)
	for _, f := range s.FamilyList() {
		s.outside.Await(t, patience, cluster.TCP, svc.AtBalancer(f, http))
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
		becomes(t, s.outside, http, svc.AtBalancer(f, http), cluster.Timeout)
	}
	s.restartAgent(t, s.node3, "--accept-service-traffic")
	for _, f := range s.FamilyList() {
		settles(t, s.outside, http, svc.AtBalancer(f, http), "web-2", s.node3.Addr(f))
		settles(t, s.outside, dns, svc.AtNode(s.node3, f), "web-2", s.node3.Addr(f))
		settles(t, s.farClient.Host, http, svc.At(f, http), "web-2", s.farClient.Addr(f))
		s.outside.MustTimeout(t, cluster.TCP, s.node3.At(f, 2222))
	}
}
