package services

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/debian"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/upstream"
)

func TestDisturbances(t *testing.T) {
	s := onStage(t)

	inKernel(t, noRules, "the agent restores deleted chains and jumps", func(t *testing.T) {
		// proves: 80
		s.deletedChains(t)
	})
	if !cluster.Balancing() { // nftables does not count connections: a removed endpoint leaves immediately, and its connections continue
		inKernel(t, withProcess, "killed while an endpoint drains", func(t *testing.T) {
			// proves: 150
			s.killedWhileDraining(t)
		})
	}
	if !cluster.NFTables() { // a rule in one nftables table cannot override a drop in another
		inKernel(t, noRules, "a host firewall that drops by default", func(t *testing.T) {
			// proves: 152
			s.hostFirewall(t)
		})
	}
	if cluster.NFTables() {
		t.Run("nft of two Debian releases shows the table", func(t *testing.T) {
			s.shownByNFT(t)
		})
	}
	t.Run("health and mode pages, and a conntrack timeout", func(t *testing.T) {
		// proves: 79, 139
		page, err := s.outside.HTTPGet("http://"+s.node1.At(cluster.V4, 10256)+"/healthz", slowly)
		if err != nil || page.Status != 200 || !strings.Contains(page.Body, "lastUpdated") {
			t.Errorf("/healthz: %+v, %v", page, err)
		}
		page, err = s.node1.HTTPGet("http://127.0.0.1:10249/proxyMode", slowly)
		if err != nil || page.Status != 200 || page.Body != cluster.Mode().DataPlane() {
			t.Errorf("/proxyMode: %+v, %v", page, err)
		}
		if hour, err := s.node1.Sysctl("net.netfilter.nf_conntrack_tcp_timeout_close_wait"); !cluster.Userspace() && (err != nil || hour != "3600") {
			t.Errorf("nf_conntrack_tcp_timeout_close_wait is %q, want 3600 (%v)", hour, err)
		}
	})
}

// shownByNFT lists the table with the nft of this Debian release and of the next one. nft aborts with a failed
// assertion if it cannot print an expression.
func (s *stage) shownByNFT(t *testing.T) {
	s.service(t, `
metadata: {name: shown, annotations: {kube-ipvs.io/affinity-prefix-ipv4: "24", kube-ipvs.io/affinity-prefix-ipv6: "64"}}
spec: {type: LoadBalancer, sessionAffinity: ClientIP, loadBalancerSourceRanges: ["198.51.100.0/24", "fd00::/8"]}
---
endpoints: [{addresses: [web-1]}, {addresses: [web-2]}]`)
	allPorts := s.define(`
metadata: {name: shown-of-all-ports, annotations: {kube-ipvs.io/affinity-ports: all}}
spec: {sessionAffinity: ClientIP, externalTrafficPolicy: Local, ports: [{name: http, port: 8080, targetPort: 8080}]}
---
endpoints: [{addresses: [web-1]}]`)
	s.apply(t, allPorts.YAML())
	t.Cleanup(func() { s.remove(t, allPorts.YAML()) })
	root, err := upstream.Root()
	if err != nil {
		t.Fatal(err)
	}
	next, err := debian.NextNFT(root)
	if err != nil {
		t.Fatal(err)
	}
	sets := regexp.MustCompile(`(?m)^\t(set|map|chain) .*`)
	shown := func(nft ...string) []string {
		found := sets.FindAllString(s.node3.MustRun(t, append(nft, "list", "ruleset")...), -1)
		slices.Sort(found)
		return found
	}
	last := "set KIPVS-4-ALL-PORTS {"
	if cluster.Balancing() {
		last = "chain all-ports4.1 {"
	}
	var old, other []string
	cluster.Eventually(t, patience, "nft shows "+last+" in a table that does not change", func() error {
		if old = shown("nft"); !slices.Contains(old, "\t"+last) {
			return fmt.Errorf("only %v", old)
		}
		other = shown(next...)
		if now := shown("nft"); !slices.Equal(now, old) { // the agent removes objects of earlier stories
			return fmt.Errorf("it changes: %s", cmp.Diff(old, now))
		}
		return nil
	})
	if d := cmp.Diff(old, other); d != "" {
		t.Errorf("sets, maps and chains differ (- this nft, + the next release's nft)\n%s", d)
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
		rules := func() string {
			out, _ := s.node3.Run("sh", "-c", d.show) // fails while there is no table
			return inOrder(withoutCounters(out))
		}
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

// Each table is deleted in one step, because the agent could restore rules between two steps.
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

var picksSlots = regexp.MustCompile(`^\s*(chain (pick|all-ports)|map pickers)[46]`)

// inOrder sorts the objects of an nftables table, because the chains of the two families may be written in any order. It omits the chains that
// pick slots, because the agent does not create the unused ones again.
func inOrder(listing string) string {
	if !cluster.NFTables() {
		return listing
	}
	objects := strings.Split(strings.TrimSuffix(strings.TrimSpace(listing), "\n}"), "\n\n")
	objects = slices.DeleteFunc(objects, picksSlots.MatchString)
	slices.Sort(objects)
	return strings.Join(objects, "\n\n")
}

// withoutCounters removes comments, which contain the time, and the counters of built-in chains.
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

func (s *stage) killedWhileDraining(t *testing.T) {
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
	// The pod disappears without closing the connection, so IPVS tracks it for 15 minutes.
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

func (s *stage) hostFirewall(t *testing.T) {
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
