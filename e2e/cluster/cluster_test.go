package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"

	"github.com/kube-ipvs/kube-ipvs/internal/labtest"
)

// protocols are those of this kernel; the lab's has all.
func protocols(t testing.TB) []Protocol {
	if err := Supported(SCTP); err != nil {
		t.Logf("NOT TESTED here, needs the lab: %v", err)
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

// One virtual server per family and protocol, made by hand: the network is fit
// for IPVS.
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
				"pod, same node":  near.Pod(t, "neighbour").Host,
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
						// Nodes and the router have several addresses to choose from.
						if client != near.Host && client != c.Router && got.Source != client.Addr(family) {
							t.Errorf("%s: the server saw %s, not %s", where, got.Source, client.Addr(family))
						}
						if got.Source != got.Local.Addr() || got.Port != got.Local.Port() {
							t.Errorf("%s: from %s, but the server saw %s:%d", where, got.Local, got.Source, got.Port)
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
			t.Errorf("%v: has %v, too", want, other)
		}
	}
}

func TestFailuresAreToldApart(t *testing.T) {
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
				t.Errorf("%s %v: refusing took %v", proto, f, took)
			}
			r := client.MustTimeout(t, proto, web.At(f, 81), Within(300*time.Millisecond))
			if r.Took < 300*time.Millisecond || r.Connected {
				t.Errorf("%s %v: timed out: %+v", proto, f, r)
			}
			// A router limits how often it tells the same host that there is no route, and one UDP probe is one packet.
			Eventually(t, 5*DefaultWithin, fmt.Sprintf("%s %v: nowhere is unreachable", proto, f), func() error {
				if got := client.Probe(proto, nowhere[f]); got.Outcome != Unreachable {
					return errors.New(got.String())
				}
				return nil
			})
		}
	}
	if got := node.Probe(UDP, web.At(V4, 81)); got.Outcome != Filtered {
		t.Errorf("dropped by the client's own host: %s", got)
	}
	if got := client.Probe(TCP, "no address"); got.Outcome != Failed || got.Err == nil {
		t.Errorf("no address: %s", got)
	}

	// The helpers fail the test where they should.
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
			t.Errorf("%s: did not fail", name)
		}
	}
}

// recorder is a T whose failures are wanted.
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
		t.Fatalf("tenth addresses: %v", vip)
	}
	c.RouteServiceCIDRVia(t, c.Nodes[0])
	c.RouteServiceCIDRVia(t, node) // the later call wins
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
			t.Errorf("%s: a draining server: alive: %v", proto, alive)
		}
		client.MustRefuse(t, proto, web.At(V6, 80))
		server.Close()
		conn.MustBeDead(t)
		web.Serve(t, proto, 80, As("next")) // the port is free at once
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

		// A hole of 300 ms is seen.
		node.MustRun(t, "ip6tables", "-w", "-I", "FORWARD", "-j", "DROP")
		time.Sleep(300 * time.Millisecond)
		node.MustRun(t, "ip6tables", "-w", "-D", "FORWARD", "-j", "DROP")
		flows.AwaitRound(t, 20*time.Second)
		if r := flows.Report(); r.LongestSilence < 300*time.Millisecond {
			t.Errorf("%s: after a hole: %s", proto, r)
		}
		// So is the end of the server.
		server.Close()
		Eventually(t, 5*time.Second, "the flows notice", func() error {
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
		// What a Service does to a pod that calls itself, spelled in NAT.
		node.MustRun(t, "iptables", "-w", "-t", "nat", "-A", "PREROUTING", "-d", "10.96.0.10", "-p", "tcp",
			"--dport", "80", "-j", "DNAT", "--to-destination", web.At(V4, 8080))
		node.MustRun(t, "iptables", "-w", "-t", "nat", "-A", "POSTROUTING", "-s", web.V4.String(), "-d", web.V4.String(), "-j", "MASQUERADE")
		if got := web.Get(t, TCP, "10.96.0.10:80"); got.Server != "web" || got.Source == web.V4 {
			t.Errorf("bridge=%v: %+v", bridge, got)
		}
	}
}

func TestProcesses(t *testing.T) {
	labtest.NeedRoot(t)
	c := New(t, Config{Nodes: 1})
	node := c.Nodes[0]
	if out := node.MustRun(t, "ip", "-o", "-4", "addr", "show", "eth0"); !strings.Contains(out, "192.168.50.11/24") {
		t.Errorf("eth0: %s", out)
	}
	if out := node.MustRun(t, "cat", "/proc/sys/net/ipv4/ip_forward"); out != "1\n" {
		t.Errorf("ip_forward: %q", out)
	}
	if v, err := c.Clients[0].Sysctl("net.ipv4.ip_forward"); v != "0" || err != nil {
		t.Errorf("the client's ip_forward: %q, %v", v, err)
	}
	_, err := node.Run("sh", "-c", "echo out; echo err >&2; exit 3")
	for _, want := range []string{"node-1", "sh -c", "out", "err", "exit status 3"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q: %v", want, err)
		}
	}
	if _, err := node.Run("no-such-program"); err == nil {
		t.Error("no-such-program ran")
	}
	if _, err := node.RunCommand(Command{Args: []string{"sleep", "60"}, Within: 50 * time.Millisecond}); err == nil {
		t.Error("sleep 60 did not end")
	}

	polite := node.MustStart(t, "sh", "-c", "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.05; done")
	polite.AwaitLog(t, 5*time.Second, "ready")
	if err := polite.Stop(5 * time.Second); err != nil || !strings.Contains(polite.Log(), "bye") {
		t.Errorf("polite: %v, log %q", err, polite.Log())
	}
	deaf := node.MustStart(t, "sh", "-c", "trap '' TERM; echo ready; sleep 60 & wait; sleep 60")
	deaf.AwaitLog(t, 5*time.Second, "ready")
	if err := deaf.Stop(50 * time.Millisecond); err == nil || deaf.Running() {
		t.Errorf("deaf: %v", err)
	}
	odd, err := node.StartCommand(Command{Args: []string{"sh", "-c", "id -u; exit 5"},
		SysProcAttr: func(a *syscall.SysProcAttr) { a.Credential = &syscall.Credential{Uid: 65534, Gid: 65534} }})
	if err != nil {
		t.Fatal(err)
	}
	if err, ended := odd.Wait(5 * time.Second); !ended || err == nil || odd.Log() != "65534\n" {
		t.Errorf("odd: %v, log %q", err, odd.Log())
	}
}

func TestPodsComeAndGo(t *testing.T) {
	labtest.NeedRoot(t)
	c := New(t, Config{Nodes: 1})
	node := c.Nodes[0]
	long := node.Pod(t, "a-pod-with-quite-a-long-name-1")
	longer := node.Pod(t, "a-pod-with-quite-a-long-name-2")
	if long.Veth == longer.Veth || len(long.Veth) > 15 {
		t.Errorf("interfaces %q and %q", long.Veth, longer.Veth)
	}
	if _, err := node.AddPod(long.Name); err == nil {
		t.Error("two pods with one name")
	}
	long.Serve(t, TCP, 80)
	conn := node.Open(t, TCP, long.At(V4, 80))
	process, err := long.Start("sleep", "60")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := long.Delete(); err != nil {
			t.Fatal(err)
		}
	}
	conn.MustBeDead(t)
	if process.Running() {
		t.Error("its process still runs")
	}
	if out := node.MustRun(t, "ip", "link"); strings.Contains(out, long.Veth) {
		t.Errorf("its interface is still there: %s", out)
	}
	if _, err := long.Listen(TCP, 81); err == nil {
		t.Error("a deleted pod serves")
	}
	again := node.Pod(t, long.Name)
	if again.V4 == long.V4 {
		t.Error("its address was used again")
	}
	again.Serve(t, TCP, 80)
	node.Get(t, TCP, again.At(V6, 80))
}

func TestCloseLeavesNothing(t *testing.T) {
	labtest.NeedRoot(t)
	existing := goleak.IgnoreCurrent()
	c, err := Create(Config{Name: "leaves nothing", Nodes: 2, Clients: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	web := c.Nodes[0].Pod(t, "web")
	if _, err := web.Listen(TCP, 80); err != nil {
		t.Fatal(err)
	}
	if _, err := web.Listen(UDP, 80); err != nil {
		t.Fatal(err)
	}
	flows, err := c.Clients[1].StartFlows(50, TCP, web.At(V4, 80), FlowConfig{})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := c.Clients[0].Dial(UDP, web.At(V6, 80))
	if err != nil {
		t.Fatal(err)
	}
	child, err := c.Nodes[0].Start("sleep", "600")
	if err != nil {
		t.Fatal(err)
	}
	// A daemon: another session, its parent gone.
	if _, err := web.Run("sh", "-c", "setsid sh -c 'sleep 600; true' >/dev/null 2>&1 &"); err != nil {
		t.Fatal(err)
	}
	inodes := map[uint64]bool{}
	for _, h := range c.hosts {
		ino, err := h.ns.inode()
		if err != nil {
			t.Fatal(err)
		}
		inodes[ino] = true
	}
	if len(within(inodes)) < 2 {
		t.Errorf("processes inside: %v", within(inodes))
	}

	// Interfaces whose other ends are in the cluster live as long as the
	// kernel keeps their namespaces.
	witness, err := newNamespace(c.Prefix + "-witness")
	if err != nil {
		t.Fatal(err)
	}
	defer witness.remove()
	for i, h := range c.hosts {
		_, _, err := veth(&Host{Name: "witness", ns: witness}, fmt.Sprint("to-", i), h, "witness")
		if err != nil {
			t.Fatal(err)
		}
	}

	for range 2 {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if child.Running() || conn.Alive() {
		t.Error("a process or connection outlived the cluster")
	}
	if r := flows.Stop(); r.Sent == 0 {
		t.Errorf("flows: %s", r)
	}
	if left := within(inodes); len(left) > 0 {
		t.Errorf("processes left: %v", left)
	}
	Eventually(t, 20*time.Second, "the kernel destroys the namespaces", func() error {
		links, err := witness.nl.LinkList()
		if err == nil && len(links) > 1 {
			err = fmt.Errorf("%d interfaces left", len(links)-1)
		}
		return err
	})
	if err := witness.remove(); err != nil {
		t.Error(err)
	}
	names, _ := filepath.Glob(filepath.Join(namesDir, c.Prefix+"*"))
	locks, _ := filepath.Glob(filepath.Join(locksDir, c.Prefix+"*"))
	if len(names)+len(locks) > 0 {
		t.Errorf("left: %v %v", names, locks)
	}
	if _, err := c.Nodes[0].AddPod("late"); err == nil {
		t.Error("a closed cluster takes pods")
	}
	if _, err := c.Nodes[0].Run("true"); err == nil {
		t.Error("a closed cluster runs programs")
	}
	goleak.VerifyNone(t, existing)
}

// within lists the processes in the namespaces, by reading only.
func within(inodes map[uint64]bool) (pids []string) {
	links, _ := filepath.Glob("/proc/[0-9]*/ns/net")
	for _, l := range links {
		var ino uint64
		target, _ := os.Readlink(l)
		if _, err := fmt.Sscanf(target, "net:[%d]", &ino); err == nil && inodes[ino] {
			pids = append(pids, l)
		}
	}
	return pids
}

func TestTheMachineIsUntouched(t *testing.T) {
	labtest.NeedRoot(t)
	state := func() string {
		links, err := netlink.LinkList()
		if err != nil {
			t.Fatal(err)
		}
		var s []string
		for _, l := range links {
			s = append(s, l.Attrs().Name)
		}
		forward, _ := os.ReadFile("/proc/sys/net/ipv4/ip_forward")
		redirects, _ := os.ReadFile("/proc/sys/net/ipv4/conf/all/send_redirects")
		ns, _ := os.Readlink("/proc/self/ns/net")
		return fmt.Sprint(s, string(forward), string(redirects), ns)
	}
	before := state()
	c := New(t, Config{})
	c.Nodes[0].Pod(t, "web").Serve(t, TCP, 80)
	if after := state(); after != before {
		t.Errorf("before: %s\nafter: %s", before, after)
	}
}

func TestCreateFailsCleanly(t *testing.T) {
	labtest.NeedRoot(t)
	existing := goleak.IgnoreCurrent()
	for _, config := range []Config{{Nodes: 1000}, {Nodes: -1}, {RPFilter: 3}, {Families: 99}} {
		if _, err := Create(config); err == nil {
			t.Errorf("%+v: no error", config)
		}
	}
	// Half way: the router stands, its second bridge cannot be made.
	good := outside
	outside = Prefixes{}
	defer func() { outside = good }()
	if _, err := Create(Config{Name: "broken"}); err == nil || !strings.Contains(err.Error(), "router") {
		t.Errorf("error: %v", err)
	}
	for _, dir := range []string{namesDir, locksDir} {
		if left, _ := filepath.Glob(filepath.Join(dir, "kipvs-broken*")); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	}
	goleak.VerifyNone(t, existing)
}

func TestStaleNamespacesAreSwept(t *testing.T) {
	labtest.NeedRoot(t)
	if err := prepareNames(); err != nil {
		t.Fatal(err)
	}
	// What a killed process leaves: the names, and a lock that nobody holds.
	stale := uniquePrefix("stale")
	ns, err := newNamespace(stale + "-node-1")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.remove()
	if err := os.MkdirAll(locksDir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(locksDir, stale), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	living := New(t, Config{Nodes: 1})
	New(t, Config{Nodes: 1})
	if _, err := os.Stat(filepath.Join(namesDir, stale+"-node-1")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("still there: %v", err)
	}
	if _, err := os.Stat(living.Nodes[0].NamespacePath()); err != nil {
		t.Errorf("a living cluster was swept: %v", err)
	}
}

func TestDump(t *testing.T) {
	labtest.NeedRoot(t)
	c := New(t, Config{Nodes: 1})
	web := c.Nodes[0].Pod(t, "web")
	web.Serve(t, TCP, 80)
	c.Clients[0].Get(t, TCP, web.At(V4, 80))
	p := c.Nodes[0].MustStart(t, "sh", "-c", "echo last words")
	p.Wait(5 * time.Second)
	var out bytes.Buffer
	c.Dump(&out, true, 0)
	for _, want := range []string{"=== node-1", "--- ip addr", "192.168.50.11", "--- ip -6 route", "last words",
		"server web TCP 80: requests by source map[198.51.100.11:1]"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("lacks %q", want)
		}
	}
	dir := t.TempDir()
	t.Setenv("LAB_OUT", dir)
	c.dumpFor(t)
	if files, _ := filepath.Glob(filepath.Join(dir, "TestDump", "*.txt")); len(files) != 4 {
		t.Errorf("files: %v", files)
	}
}

func BenchmarkCreate(b *testing.B) {
	labtest.NeedRoot(b)
	for b.Loop() {
		c, err := Create(Config{Nodes: 3})
		if err != nil {
			b.Fatal(err)
		}
		for i := range 6 {
			if _, err := c.Nodes[i%3].AddPod(fmt.Sprint("pod-", i)); err != nil {
				b.Fatal(err)
			}
		}
		b.StopTimer()
		if err := c.Close(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
