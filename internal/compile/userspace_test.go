package compile_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// inMode compiles a Service for a data plane, on a node with the address 127.0.0.1.
func inMode(mode kernel.Mode, svc *model.Service) *compile.Cluster {
	cfg := compiletest.Config()
	cfg.Mode, cfg.Families = mode, []inet.Family{inet.IPv4}
	return compiletest.Cluster(cfg, map[model.ServiceID]*model.Service{svc.ID: svc}, compiletest.At("127.0.0.1"))
}

func forwarded(svc *model.Service) string {
	var all []string
	for _, s := range inMode(kernel.Userspace, svc).Forwarded(svc.ID) {
		var endpoints []string
		for _, d := range s.Destinations {
			endpoints = append(endpoints, d.Addr.String())
		}
		all = append(all, fmt.Sprintf("%s %s -> %s", s.Owner.Port, s.Key.Addr, strings.Join(endpoints, " ")))
	}
	return strings.Join(all, ", ")
}

// TestPoliciesInUserspace: each port is forwarded once, with the endpoints that its traffic policy allows: the external
// policy if it is a node port, and otherwise the internal one.
func TestPoliciesInUserspace(t *testing.T) {
	svc := compiletest.Service("web", "10.96.0.10", "10.244.1.5", "10.244.2.5")
	svc.Slices[0].Endpoints[1].Node = "another"
	svc.LoadBalancerIPs, svc.ExternalIPs = []netip.Addr{netip.MustParseAddr("203.0.113.1")}, []netip.Addr{netip.MustParseAddr("203.0.113.2")}
	const local, both = "10.244.1.5:8080", "10.244.1.5:8080 10.244.2.5:8080"
	const inside, outside = "http 10.96.0.10:80 -> ", "http 127.0.0.1:30080 -> "
	for _, c := range []struct {
		nodePort           uint16
		internal, external bool
		want               string
	}{
		{0, false, true, inside + both}, {0, true, false, inside + local},
		{30080, true, false, outside + both}, {30080, false, true, outside + local},
	} {
		svc.Ports[0].NodePort, svc.InternalLocal, svc.ExternalLocal = c.nodePort, c.internal, c.external
		if got := forwarded(svc); got != c.want {
			t.Errorf("node port %d, policies Local: %v and %v: %s, want %s", c.nodePort, c.internal, c.external, got, c.want)
		}
	}
}

// TestServersAtAddresses: a process serves each address of a Service with the endpoints of its traffic policy, for the clients that the
// policy and the source ranges admit.
func TestServersAtAddresses(t *testing.T) {
	svc := compiletest.Service("web", "10.96.0.10", "10.244.1.5", "10.244.2.5")
	svc.Slices[0].Endpoints[1].Node = "another"
	svc.LoadBalancerIPs, svc.ExternalIPs = []netip.Addr{netip.MustParseAddr("203.0.113.1")}, []netip.Addr{netip.MustParseAddr("203.0.113.2")}
	svc.Ports[0].NodePort = 30080
	served := func() string {
		cfg := compiletest.Config()
		cfg.Mode, cfg.Families = kernel.Userspace, []inet.Family{inet.IPv4}
		c := compiletest.Cluster(cfg, map[model.ServiceID]*model.Service{svc.ID: svc}, compiletest.At("192.168.1.5"))
		var all []string
		for _, s := range c.AtAddresses(svc.ID) {
			text := fmt.Sprintf("%s=%d", s.Key.Addr, len(s.Destinations))
			if s.NodePort {
				text = "node port " + text
			}
			members := kernel.MembersOf(s.Members)
			pods := []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
			if clients, open := compile.AdmissionOf(cfg.Families, pods).Admitted(s.Key, members, c.Addresses()); !open || clients != nil {
				text += fmt.Sprintf(" for %s", clients)
			}
			all = append(all, text)
		}
		return strings.Join(all, ", ")
	}
	if got := served(); got != "10.96.0.10:80=2, 203.0.113.1:80=2, 203.0.113.2:80=2, node port 192.168.1.5:30080=2" {
		t.Error(got)
	}
	svc.ExternalLocal, svc.SourceRanges = true, []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
	if got := served(); got != "10.96.0.10:80=2, 203.0.113.1:80=1 for [198.51.100.0/24], 203.0.113.2:80=1, node port 192.168.1.5:30080=1" {
		t.Errorf("with source ranges and policy Local: %s", got)
	}
	svc.SourceRanges, svc.Slices[0].Endpoints[0].Node = nil, "another"
	const inside = "=2 for [10.244.0.0/16 192.168.1.5/32]"
	if got := served(); got != "10.96.0.10:80=2, 203.0.113.1:80"+inside+", 203.0.113.2:80"+inside+", node port 192.168.1.5:30080"+inside {
		t.Errorf("without a local endpoint: %s", got)
	}
}

// TestLoopbackEndpoints: only the data plane in user space sends clients to processes of the machine.
func TestLoopbackEndpoints(t *testing.T) {
	svc := compiletest.Service("web", "10.96.0.10", "127.0.0.1")
	for mode, refused := range map[kernel.Mode]bool{kernel.IPVSWithIPTables: true, kernel.IPVSWithNFTables: true, kernel.NFTablesOnly: true, kernel.Userspace: false} {
		c := inMode(mode, svc)
		problem := slices.ContainsFunc(c.Problems(svc.ID), func(p model.Problem) bool { return strings.Contains(p.Reason, "is a loopback address") })
		if endpoints := len(c.Forwarded(svc.ID)[0].Destinations); problem != refused || (endpoints == 0) != refused {
			t.Errorf("%s: %d endpoints, Problem: %v", mode, endpoints, problem)
		}
	}
}

// TestNoLoopbackEndpointsForTheCluster: where the agent's process serves the addresses of Services, a Service must not
// reach a node's own processes, as on the other data planes.
func TestNoLoopbackEndpointsForTheCluster(t *testing.T) {
	svc := compiletest.Service("web", "10.96.0.10", "127.0.0.1")
	cfg := compiletest.Config()
	cfg.Mode = kernel.Userspace
	c := compiletest.Cluster(cfg, map[model.ServiceID]*model.Service{svc.ID: svc}, compiletest.At("192.168.50.11"))
	if problems := c.Problems(svc.ID); len(problems) != 1 || !strings.Contains(problems[0].Reason, "is a loopback address") {
		t.Errorf("Problems %v", problems)
	}
}

// TestLackingInUserspace: annotations without effect are Problems, and all ports still work.
func TestLackingInUserspace(t *testing.T) {
	svc := compiletest.Service("web", "10.96.0.10", "10.244.1.5")
	svc.AffinityTimeout = time.Hour
	svc.Balancing = model.Balancing{Scheduler: "sh", SlowStart: time.Minute, MaxConnections: 10, AllPorts: true}
	c := inMode(kernel.Userspace, svc)
	var fields []string
	for _, p := range c.Problems(svc.ID) {
		fields = append(fields, strings.TrimSuffix(strings.TrimPrefix(p.Field, "metadata.annotations[kube-ipvs.io/"), "]"))
	}
	if got := strings.Join(fields, " "); got != "affinity-ports max-connections scheduler slow-start" {
		t.Errorf("Problems of %s", got)
	}
	for _, s := range c.Forwarded(svc.ID) {
		if s.Key.Addr.Port() == 0 || s.Flags&kernel.FlagPersistent == 0 {
			t.Errorf("%s has no affinity of its own", s.Key)
		}
	}
}

// TestSchedulerInUserspace: every virtual server has the scheduler of the agent's process, and no flags of another one.
func TestSchedulerInUserspace(t *testing.T) {
	svc := compiletest.Service("web", "10.96.0.10", "10.244.1.5")
	for _, asked := range []string{"", "rr", "wrr", "sh"} {
		svc.Balancing.Scheduler = asked
		c := inMode(kernel.Userspace, svc)
		if got := fmt.Sprint(described(c, svc.ID)[0].Settings[0]); got != "{scheduler wrr the agent's process, which has no other}" {
			t.Errorf("scheduler %q: described as %s", asked, got)
		}
		for _, s := range c.Forwarded(svc.ID) {
			if s.Scheduler != "wrr" || s.Flags != 0 {
				t.Errorf("scheduler %q: %s", asked, s.Server.String())
			}
		}
	}
}

// TestSchedulerOfNFTables: the description says how nftables balances. The virtual server keeps the scheduler that IPVS would have.
func TestSchedulerOfNFTables(t *testing.T) {
	svc := compiletest.Service("web", "10.96.0.10", "10.244.1.5")
	for asked, kept := range map[string]string{"": "rr", "mh": "mh"} {
		svc.Balancing.Scheduler = asked
		c := inMode(kernel.NFTablesOnly, svc)
		if got := fmt.Sprint(described(c, svc.ID)[0].Settings[:2]); got != "[{scheduler random nftables balances at random} {affinity none spec.sessionAffinity}]" {
			t.Errorf("scheduler %q: described as %s", asked, got)
		}
		for _, s := range c.Forwarded(svc.ID) {
			if s.Scheduler != kept {
				t.Errorf("scheduler %q: %s", asked, s.Server.String())
			}
		}
	}
}

// TestProxyProtocol: only the agent's process sends the header, and only over TCP. Elsewhere it is a Problem with a
// remedy, and the port works without it.
func TestProxyProtocol(t *testing.T) {
	svc := compiletest.Service("web", "10.96.0.10", "10.244.1.5")
	svc.Ports = append(svc.Ports, model.ServicePort{Name: "dns", Protocol: inet.UDP, Port: 53})
	svc.Slices[0].Ports = append(svc.Slices[0].Ports, model.EndpointPort{Name: "dns", Protocol: inet.UDP, Port: 53})
	const anywhere = kernel.FlagProxyV1 | kernel.FlagProxyV2
	for _, mode := range []kernel.Mode{kernel.IPVSWithIPTables, kernel.IPVSWithNFTables, kernel.NFTablesOnly, kernel.Userspace} {
		for version, flag := range []uint32{0, kernel.FlagProxyV1, kernel.FlagProxyV2} {
			svc.Balancing.ProxyProtocol = uint8(version)
			c, says := inMode(mode, svc), "cannot add the header"
			if mode == kernel.Userspace {
				says = "only over TCP"
			} else {
				flag = 0
			}
			for _, s := range c.Forwarded(svc.ID) {
				if want := map[inet.Protocol]uint32{inet.TCP: flag}[s.Key.Protocol]; s.Flags&anywhere != want || len(s.Destinations) != 1 {
					t.Errorf("%s, v%d: %s has flags %x and %d endpoints, want flags %x", mode, version, s.Key, s.Flags, len(s.Destinations), want)
				}
			}
			value := fmt.Sprintf("v%d", version)
			problems := c.Problems(svc.ID)
			if want := min(version, 1); len(problems) != want {
				t.Errorf("%s, %s: Problems %v", mode, value, problems)
			}
			for _, p := range problems {
				if p.Field != "metadata.annotations[kube-ipvs.io/proxy-protocol]" || p.Value != value || !strings.Contains(p.Reason, says) || p.Remedy == "" {
					t.Errorf("%s: Problem %s", mode, p)
				}
			}
			if shown, want := headersShown(c, svc.ID), map[bool]string{true: "tcp " + value}[flag != 0]; shown != want {
				t.Errorf("%s, %s: the settings show %q, want %q", mode, value, shown, want)
			}
		}
	}
}

// headersShown lists the protocols of the frontends whose settings contain a header, each with its version.
func headersShown(c *compile.Cluster, id model.ServiceID) string {
	var shown []string
	compiled, _ := c.Service(id)
	for f := range compiled.Frontends {
		for _, s := range f.Settings {
			if s.Name == "PROXY protocol" && s.From == "annotation kube-ipvs.io/proxy-protocol" {
				shown = append(shown, f.Protocol+" "+s.Value)
			}
		}
	}
	return strings.Join(shown, ", ")
}

// TestBaseInUserspace: a process needs no rules, and only the sysctl with which pods' packets reach it. Sets remain, because they contain the traffic
// policies and source ranges.
func TestBaseInUserspace(t *testing.T) {
	cfg := compiletest.Config()
	cfg.Mode, cfg.StrictARP, cfg.StopCounters, cfg.Timeouts.TCP = kernel.Userspace, true, true, time.Hour
	base := compile.Base(cfg)
	if len(base.Rulesets) > 0 || len(base.Sysctls) != 1 || base.Sysctls[0].Name != "net/ipv4/ip_forward" || base.Timeouts != (kernel.Timeouts{}) || len(base.Sets) == 0 {
		t.Errorf("%d rulesets, sysctls %v, timeouts %v, %d sets", len(base.Rulesets), base.Sysctls, base.Timeouts, len(base.Sets))
	}
}
