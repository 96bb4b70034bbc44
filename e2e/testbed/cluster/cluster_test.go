package cluster

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

// protocols returns the protocols that this kernel supports.
func protocols(t testing.TB) []Protocol {
	if err := Supported(SCTP); err != nil {
		t.Logf("NOT TESTED, because this needs the lab: %v", err)
		return []Protocol{TCP, UDP}
	}
	return []Protocol{TCP, UDP, SCTP}
}

func TestTheLabHasSCTP(t *testing.T) {
	labtest.Need(t)
	if err := Supported(SCTP); err != nil {
		t.Fatal(err)
	}
}

// TestVirtualServer checks that the network works with IPVS.
func TestVirtualServer(t *testing.T) {
	labtest.Need(t)
	for _, bridge := range []bool{false, true} {
		c := New(t, Config{Bridge: bridge})
		node := c.Nodes[0]
		near, far := node.Pod(t, "near"), c.Nodes[1].Pod(t, "far")
		c.RouteServiceCIDRVia(t, node)
		node.MustRun(t, "ip", "link", "add", "kube-ipvs0", "type", "dummy")
		if err := node.SetSysctl("net.ipv4.vs.conntrack", "1"); err != nil {
			t.Fatal(err)
		}
		for _, proto := range []Protocol{TCP, UDP, SCTP} {
			near.Serve(t, proto, 8080)
			far.Serve(t, proto, 8080)
		}
		option := map[Protocol]string{TCP: "-t", UDP: "-u", SCTP: "--sctp-service"}
		for _, f := range c.FamilyList() {
			iptables := map[Family]string{V4: "iptables", V6: "ip6tables"}[f]
			node.MustRun(t, iptables, "-w", "-t", "nat", "-A", "POSTROUTING", "-m", "ipvs", "--ipvs", "-j", "MASQUERADE")
			vip := c.Service.Addr(f, 10)
			node.AddAddr(t, "kube-ipvs0", vip.String())
			for _, proto := range []Protocol{TCP, UDP, SCTP} {
				at := netip.AddrPortFrom(vip, 80).String()
				node.MustRun(t, "ipvsadm", "-A", option[proto], at, "-s", "rr")
				for _, pod := range []*Pod{near, far} {
					node.MustRun(t, "ipvsadm", "-a", option[proto], at, "-r", pod.At(f, 8080), "-m")
				}
				for _, client := range []*Host{c.Clients[0], node.Host, near.Host} {
					if got := client.Spread(t, 4, proto, at); got["near"] != 2 || got["far"] != 2 {
						t.Errorf("%s -> %s %s: served by %v", client, at, proto, got)
					}
				}
			}
		}
	}
}

func TestEveryoneReachesEveryone(t *testing.T) {
	labtest.NeedRoot(t)
	for _, bridge := range []bool{false, true} {
		t.Run(fmt.Sprintf("bridge=%v", bridge), func(t *testing.T) {
			c := New(t, Config{Bridge: bridge})
			near, far := c.Nodes[0], c.Nodes[1]
			web := near.Pod(t, "web")
			from := map[string]*Host{
				"pod to itself":   web.Host,
				"pod, same node":  near.Pod(t, "neighbor").Host,
				"pod, other node": far.Pod(t, "stranger").Host,
				"its node":        near.Host,
				"other node":      far.Host,
				"outside client":  c.Clients[0],
				"router":          c.Router,
			}
			for _, proto := range protocols(t) {
				web.Serve(t, proto, 8080)
				near.Serve(t, proto, 9090)
				for _, family := range c.FamilyList() {
					for name, client := range from {
						where := fmt.Sprintf("%s, %s, %v", name, proto, family)
						got := client.Get(t, proto, web.At(family, 8080))
						if got.Server != "web" || got.Dest.Addr() != web.Addr(family) || got.Dest.Port() != 8080 {
							t.Errorf("%s: %+v", where, got)
						}
						if client != near.Host && client != c.Router && got.Source != client.Addr(family) {
							t.Errorf("%s: the server saw the source %s, want %s", where, got.Source, client.Addr(family))
						}
						if got.Source != got.Local.Addr() || got.Port != got.Local.Port() {
							t.Errorf("%s: the client sent from %s, but the server saw %s:%d", where, got.Local, got.Source, got.Port)
						}
						if got := client.Get(t, proto, near.At(family, 9090)); got.Server != "node-1" {
							t.Errorf("%s: %+v", where, got)
						}
					}
				}
			}
		})
	}
}

func TestSingleFamily(t *testing.T) {
	labtest.NeedRoot(t)
	for families, want := range map[Families]Family{IPv4Only: V4, IPv6Only: V6} {
		c := New(t, Config{Families: families, Nodes: 1})
		web := c.Nodes[0].Pod(t, "web")
		web.Serve(t, TCP, 80)
		c.Clients[0].Get(t, TCP, web.At(want, 80))
		other := V4 + V6 - want
		if web.Addr(other).IsValid() || c.Service.of(other).IsValid() || c.Nodes[0].PodCIDR.of(other).IsValid() {
			t.Errorf("a cluster with only %v also has %v", want, other)
		}
	}
}

func TestProbeOutcomes(t *testing.T) {
	labtest.NeedRoot(t)
	c := New(t, Config{Nodes: 1})
	node, client := c.Nodes[0], c.Clients[0]
	web := node.Pod(t, "web")
	for _, iptables := range []string{"iptables", "ip6tables"} {
		node.MustRun(t, iptables, "-w", "-I", "FORWARD", "-p", "tcp", "--dport", "81", "-j", "DROP")
		node.MustRun(t, iptables, "-w", "-I", "FORWARD", "-p", "udp", "--dport", "81", "-j", "DROP")
		node.MustRun(t, iptables, "-w", "-I", "OUTPUT", "-p", "udp", "--dport", "81", "-j", "DROP")
		node.MustRun(t, iptables, "-w", "-I", "FORWARD", "-p", "tcp", "--dport", "82", "-j", "REJECT")
		node.MustRun(t, iptables, "-w", "-I", "FORWARD", "-p", "udp", "--dport", "82", "-j", "REJECT")
	}
	for _, cidr := range []string{"10.96.1.0/24", "fd00:10:96::1:0/112"} {
		family := "-4"
		if strings.Contains(cidr, ":") {
			family = "-6"
		}
		c.Router.MustRun(t, "ip", family, "route", "add", "unreachable", cidr)
	}
	nowhere := map[Family]string{V4: "10.96.1.1:80", V6: "[fd00:10:96::1:1]:80"}
	for _, proto := range []Protocol{TCP, UDP} {
		for _, f := range c.FamilyList() {
			start := time.Now()
			for range 20 { // more than any rate limit on ICMP errors
				client.MustRefuse(t, proto, web.At(f, 80))
				client.MustRefuse(t, proto, web.At(f, 82))
			}
			if took := time.Since(start); took > DefaultWithin {
				t.Errorf("%s %v: the refusals took %v", proto, f, took)
			}
			r := client.MustTimeout(t, proto, web.At(f, 81), Within(300*time.Millisecond))
			if r.Took < 300*time.Millisecond || r.Connected {
				t.Errorf("%s %v: the probe timed out too early, or connected: %+v", proto, f, r)
			}
			// A router limits the rate of ICMP errors to one host, and a UDP probe is a single packet.
			Eventually(t, 5*DefaultWithin, fmt.Sprintf("%s %v: the unused address is unreachable", proto, f), func() error {
				if got := client.Probe(proto, nowhere[f]); got.Outcome != Unreachable {
					return errors.New(got.String())
				}
				return nil
			})
		}
	}
	if got := node.Probe(UDP, web.At(V4, 81)); got.Outcome != Filtered {
		t.Errorf("want the client's own host to drop the packet, got %s", got)
	}
	if got := client.Probe(TCP, "no address"); got.Outcome != Failed || got.Err == nil {
		t.Errorf("a probe without an address returned %s", got)
	}

}

func TestHelpersFail(t *testing.T) {
	labtest.NeedRoot(t)
	c := New(t, Config{Nodes: 1})
	node, client := c.Nodes[0], c.Clients[0]
	web := node.Pod(t, "web")
	web.Serve(t, TCP, 80)
	for name, story := range map[string]func(T){
		"refuse":  func(t T) { client.MustRefuse(t, TCP, web.At(V4, 80)) },
		"timeout": func(t T) { client.MustTimeout(t, TCP, web.At(V4, 80)) },
		"get":     func(t T) { client.Get(t, TCP, web.At(V4, 79)) },
		"open":    func(t T) { client.Open(t, TCP, web.At(V4, 79)) },
		"await":   func(t T) { client.Await(t, 50*time.Millisecond, TCP, web.At(V4, 79)) },
		"run":     func(t T) { node.MustRun(t, "false") },
	} {
		if !fails(t, story) {
			t.Errorf("%s: the helper did not fail the test", name)
		}
	}
}

type recorder struct {
	T
	failed bool
}

func (r *recorder) Errorf(string, ...any) { r.failed = true }
func (r *recorder) Fatalf(string, ...any) { r.failed = true; runtime.Goexit() }

func fails(t T, story func(T)) bool {
	r := &recorder{T: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		story(r)
	}()
	<-done
	return r.failed
}

func TestRoutesToTheServiceRange(t *testing.T) {
	labtest.NeedRoot(t)
	c := New(t, Config{Nodes: 2})
	client, node := c.Clients[0], c.Nodes[1]
	vip := map[Family]netip.Addr{V4: c.Service.Addr(V4, 10), V6: c.Service.Addr(V6, 10)}
	if vip[V4].String() != "10.96.0.10" || vip[V6].String() != "fd00:10:96::a" {
		t.Fatalf("the tenth addresses of the Service range are %v", vip)
	}
	c.RouteServiceCIDRVia(t, c.Nodes[0])
	c.RouteServiceCIDRVia(t, node) // the later call replaces the route
	for _, f := range c.FamilyList() {
		node.AddAddr(t, "lo", vip[f].String())
	}
	for _, proto := range []Protocol{TCP, UDP} {
		node.Serve(t, proto, 80, As("vip"))
		for _, f := range c.FamilyList() {
			at := netip.AddrPortFrom(vip[f], 80)
			got := client.Get(t, proto, at.String())
			if got.Server != "vip" || got.Dest != at || got.Source != client.Addr(f) {
				t.Errorf("%s %v: %+v", proto, f, got)
			}
		}
	}
	local := node.Serve(t, TCP, 8080, On("127.0.0.1"))
	client.MustRefuse(t, TCP, node.At(V4, 8080))
	node.Get(t, TCP, "127.0.0.1:8080", FromAddr(netip.MustParseAddr("127.0.0.7")), FromPort(4000))
	if got := local.Sources(); got[netip.MustParseAddr("127.0.0.7")] != 1 {
		t.Errorf("sources: %v", got)
	}
}

func TestConnections(t *testing.T) {
	labtest.NeedRoot(t)
	c := New(t, Config{Nodes: 2})
	web, client := c.Nodes[0].Pod(t, "web"), c.Nodes[1].Pod(t, "client")
	for _, proto := range protocols(t) {
		server := web.Serve(t, proto, 80)
		conn := client.Open(t, proto, web.At(V6, 80))
		for range 3 {
			if got := conn.MustPing(t); got.Source != client.V6 || got.Port != conn.Local.Port() {
				t.Errorf("%s: %+v", proto, got)
			}
		}
		server.StopListening()
		if alive := conn.Alive(); alive != (proto != UDP) {
			t.Errorf("%s: connection to a draining server is alive: %v", proto, alive)
		}
		client.MustRefuse(t, proto, web.At(V6, 80))
		server.Close()
		conn.MustBeDead(t)
		web.Serve(t, proto, 80, As("next")) // the port is free immediately
		client.Get(t, proto, web.At(V4, 80))
	}
}

func TestFlows(t *testing.T) {
	labtest.NeedRoot(t)
	c := New(t, Config{Nodes: 2})
	node, web, client := c.Nodes[0], c.Nodes[0].Pod(t, "web"), c.Clients[0]
	for _, proto := range protocols(t) {
		server := web.Serve(t, proto, 80)
		quick := FlowConfig{Every: 20 * time.Millisecond, Within: 2 * time.Second}
		calm := client.OpenFlows(t, 200, proto, web.At(V4, 80), FlowConfig{})
		flows := client.OpenFlows(t, 20, proto, web.At(V6, 80), quick)
		calm.AwaitRound(t, 10*time.Second)
		flows.AwaitRound(t, 10*time.Second)
		r := calm.MustBeUnharmed(t)
		t.Log(proto, r)
		if r.Sent < 200 || r.Answered != r.Sent || r.Servers["web"] != 200 {
			t.Errorf("%s: %s", proto, r)
		}

		node.MustRun(t, "ip6tables", "-w", "-I", "FORWARD", "-j", "DROP")
		time.Sleep(300 * time.Millisecond)
		node.MustRun(t, "ip6tables", "-w", "-D", "FORWARD", "-j", "DROP")
		flows.AwaitRound(t, 20*time.Second)
		if r := flows.Report(); r.LongestSilence < 300*time.Millisecond {
			t.Errorf("%s: the flows did not detect the interruption: %s", proto, r)
		}
		server.Close()
		Eventually(t, 5*time.Second, "the flows report that the server has ended", func() error {
			if r := flows.Report(); r.Broken+r.Refused < 20 {
				return errors.New(r.String())
			}
			return nil
		})
		if !fails(t, func(t T) { flows.MustBeUnharmed(t) }) {
			t.Errorf("%s: unharmed?", proto)
		}
		t.Log(proto, flows.Stop())
	}
}

func TestFlowsEndByThemselves(t *testing.T) {
	labtest.NeedRoot(t)
	c := New(t, Config{Nodes: 1})
	c.Nodes[0].Serve(t, TCP, 80)
	flows := c.Clients[0].OpenFlows(t, 3, TCP, c.Nodes[0].At(V4, 80),
		FlowConfig{Every: 10 * time.Millisecond, Max: 100 * time.Millisecond})
	flows.wg.Wait()
	if r := flows.MustBeUnharmed(t); r.Sent < 3 {
		t.Errorf("%s", r)
	}
}

func TestHairpin(t *testing.T) {
	labtest.NeedRoot(t)
	for _, bridge := range []bool{false, true} {
		c := New(t, Config{Nodes: 1, Bridge: bridge})
		node := c.Nodes[0]
		web := node.Pod(t, "web")
		web.Serve(t, TCP, 8080)
		// These NAT rules imitate a Service through which a pod connects to itself.
		node.MustRun(t, "iptables", "-w", "-t", "nat", "-A", "PREROUTING", "-d", "10.96.0.10", "-p", "tcp",
			"--dport", "80", "-j", "DNAT", "--to-destination", web.At(V4, 8080))
		node.MustRun(t, "iptables", "-w", "-t", "nat", "-A", "POSTROUTING", "-s", web.V4.String(), "-d", web.V4.String(), "-j", "MASQUERADE")
		if got := web.Get(t, TCP, "10.96.0.10:80"); got.Server != "web" || got.Source == web.V4 {
			t.Errorf("bridge=%v: %+v", bridge, got)
		}
	}
}
