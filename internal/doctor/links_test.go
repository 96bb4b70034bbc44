package doctor

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

const (
	here, far = "10.244.1.2", "10.244.2.2"
	router    = "192.168.50.12"
)

var ofPlain = kernel.ServerKey{Addr: netip.MustParseAddrPort("10.96.0.10:80"), Protocol: inet.TCP}

// lan connects the node to a second node, and gives each of them a pod that is an endpoint.
func (n *node) lan() {
	n.link(kernel.Interface{Name: "eth0", Index: 2, Kind: "device", MTU: 1500, Up: true, Addressed: true, Ethernet: true, MAC: "02:00:00:00:00:01",
		Networks: []netip.Prefix{netip.MustParsePrefix("192.168.50.11/24")}})
	n.link(kernel.Interface{Name: "pod-here", Index: 3, Kind: "veth", MTU: 1500, Up: true, Ethernet: true, Container: true, MAC: "02:00:00:00:00:03"})
	n.Routes = map[netip.Addr]kernel.Route{
		netip.MustParseAddr(here): {Interface: "pod-here", Source: netip.MustParseAddr("192.168.50.11")},
		netip.MustParseAddr(far):  {Interface: "eth0", Gateway: netip.MustParseAddr(router), Source: netip.MustParseAddr("192.168.50.11")},
	}
	n.neighbor(here, 3, "02:00:00:00:00:33", "REACHABLE")
	n.neighbor(router, 2, "02:00:00:00:00:12", "STALE")
	for _, name := range []string{"eth0", "pod-here"} {
		n.files["/proc/sys/net/ipv4/neigh/"+name+multicastAsks], n.files["/proc/sys/net/ipv4/neigh/"+name+programAsks] = "3\n", "0\n"
		n.files["/proc/sys/net/ipv4/conf/"+name+arpIgnore], n.files["/proc/sys/net/ipv4/conf/"+name+proxyARP] = "0\n", "1\n"
	}
	n.arp("1", "2")
	n.View.Node.Name = "node-1"
	n.View.Services = []view.Service{{Namespace: "default", Name: "plain", Frontends: []view.Frontend{{
		Address: ofPlain.Addr, Protocol: "tcp", State: view.Served, Endpoints: []view.Endpoint{
			{Address: netip.MustParseAddrPort(here + ":8080"), Pod: "default/here", Node: "node-1"},
			{Address: netip.MustParseAddrPort(far + ":8080"), Pod: "default/far", Node: "node-2"},
		},
	}}}}
	n.Walks = []Walk{
		{Path: Path{Service: "default/plain", Sender: fromNode, Question: explain.Question{To: ofPlain, From: ofPlain.Addr.Addr()}}, Verdict: explain.Passes, Connected: true},
		{Path: Path{Service: "default/plain", Sender: fromPod, Question: explain.Question{To: ofPlain, From: netip.MustParseAddr(here)}}, Verdict: explain.Passes},
	}
}

// neighbor adds or replaces a neighbor entry.
func (n *node) neighbor(addr string, index int, mac, state string) {
	e := kernel.Neighbor{Addr: netip.MustParseAddr(addr), Interface: index, MAC: mac, State: state}
	for at := range n.entries {
		if n.entries[at].Addr == e.Addr {
			n.entries[at] = e
			return
		}
	}
	n.entries = append(n.entries, e)
}

func (n *node) send(to string, route kernel.Route) { n.Routes[netip.MustParseAddr(to)] = route }

// onTheWay lists defects of the interfaces, neighbors and routes between this node and its endpoints.
var onTheWay = []breakage{
	{"nodes and pods", func(_ *testing.T, n *node) { n.lan() }, "", nil},
	{"lo down", func(_ *testing.T, n *node) { n.lan(); n.change("lo", func(i *kernel.Interface) { i.Up = false }) }, finding.Broken, []string{"lo is down"}},
	{"netem", func(_ *testing.T, n *node) {
		n.lan()
		n.queues = []kernel.Queue{{Interface: 1, Kind: "netem", Delay: time.Second}, {Interface: 2, Kind: "netem", Loss: 50, Delay: time.Second}}
	}, finding.Warning, []string{"lo has the queueing discipline netem, which delays packets by 1s", "eth0 has the queueing discipline netem, which loses 50 % of the packets"}},
	{"queue without room", func(_ *testing.T, n *node) {
		n.lan()
		n.queues = []kernel.Queue{{Interface: 3, Kind: "pfifo", Full: true}}
	}, finding.Warning,
		[]string{"pod-here has the queueing discipline pfifo with limit 0"}},
	{"queues of other interfaces", func(_ *testing.T, n *node) {
		n.lan()
		n.link(kernel.Interface{Name: "tap0", Index: 9, Kind: "tun", Up: true})
		n.queues = []kernel.Queue{{Interface: 9, Kind: "netem"}, {Interface: 2, Kind: "fq_codel"}}
	}, "", nil},
	{"no carrier", func(_ *testing.T, n *node) {
		n.lan()
		n.change("pod-here", func(i *kernel.Interface) { i.NoCarrier = true })
	}, finding.Warning,
		[]string{"pod-here has no carrier"}},
	{"uplink in a bridge", func(_ *testing.T, n *node) {
		n.lan()
		n.link(kernel.Interface{Name: "br0", Kind: "bridge", MTU: 1500, Up: true})
		n.change("eth0", func(i *kernel.Interface) { i.Master = "br0" })
	}, finding.Warning, []string{"routes use eth0, which belongs to br0 (bridge)"}},
	{"uplink in a VRF", func(_ *testing.T, n *node) {
		n.lan()
		n.link(kernel.Interface{Name: "red", Kind: "vrf", MTU: 1500, Up: true})
		n.change("eth0", func(i *kernel.Interface) { i.Master = "red" })
		n.Unrouted = []netip.Addr{netip.MustParseAddr("192.168.50.11")}
	}, "", nil},
	{"VLAN on a dummy", func(_ *testing.T, n *node) {
		n.lan()
		n.link(kernel.Interface{Name: "dummy9", Index: 9, Kind: "dummy", MTU: 1500, Up: true, Ethernet: true, NoARP: true})
		n.change("eth0", func(i *kernel.Interface) { i.Kind, i.Parent, i.NoARP = "vlan", "dummy9", true })
	}, "", nil},
	{"uplink without ARP", func(_ *testing.T, n *node) { n.lan(); n.change("eth0", func(i *kernel.Interface) { i.NoARP = true }) }, finding.Warning,
		[]string{"eth0 has the flag NOARP"}},
	{"Cilium's interface without ARP", func(_ *testing.T, n *node) {
		n.lan()
		n.link(kernel.Interface{Name: "cilium_host", Index: 9, Kind: "veth", MTU: 1500, Up: true, Ethernet: true, NoARP: true})
		n.send(far, kernel.Route{Interface: "cilium_host", Gateway: netip.MustParseAddr("10.244.1.1")})
	}, "", nil},
	{"no neighbor solicitations", func(_ *testing.T, n *node) { n.lan(); n.files["/proc/sys/net/ipv4/neigh/eth0/mcast_solicit"] = "0\n" }, finding.Warning,
		[]string{"net/ipv4/neigh/eth0/mcast_solicit = 0"}},
	{"neighbor solicitations by a program", func(_ *testing.T, n *node) {
		n.lan()
		n.files["/proc/sys/net/ipv4/neigh/eth0/mcast_solicit"], n.files["/proc/sys/net/ipv4/neigh/eth0/app_solicit"] = "0\n", "1\n"
	}, "", nil},
	{"no ARP replies", func(_ *testing.T, n *node) { n.lan(); n.files["/proc/sys/net/ipv4/conf/eth0/arp_ignore"] = "8\n" }, finding.Warning,
		[]string{"net/ipv4/conf/eth0/arp_ignore = 8"}},
	{"permanent neighbor", func(_ *testing.T, n *node) { n.lan(); n.neighbor(router, 2, "02:00:00:00:00:99", "PERMANENT") }, finding.Notice,
		[]string{"192.168.50.12 dev eth0 lladdr 02:00:00:00:00:99 PERMANENT"}},
	{"Flannel's permanent neighbor", func(_ *testing.T, n *node) {
		n.lan()
		n.link(kernel.Interface{Name: "flannel.1", Index: 9, Kind: "vxlan", MTU: 1450, Up: true, Ethernet: true})
		n.change("pod-here", func(i *kernel.Interface) { i.MTU = 1450 })
		n.send(far, kernel.Route{Interface: "flannel.1", Gateway: netip.MustParseAddr("10.244.2.0")})
		n.neighbor("10.244.2.0", 9, "02:00:00:00:00:99", "PERMANENT")
	}, "", nil},
	{"endpoint of another node is an address here", func(_ *testing.T, n *node) {
		n.lan()
		n.link(kernel.Interface{Name: "dup", Kind: "dummy", Networks: []netip.Prefix{netip.MustParsePrefix(far + "/32")}})
		n.send(far, kernel.Route{Interface: "lo", Local: true})
	}, finding.Warning, []string{"endpoint 10.244.2.2 (pod default/far, node node-2): the address is also on this node's interface dup"}},
	{"Docker has the network of another node's pods", func(_ *testing.T, n *node) {
		n.lan()
		n.link(kernel.Interface{Name: "docker9", Index: 9, Kind: "bridge", MTU: 1500, Up: true, NoCarrier: true, Ethernet: true})
		n.send(far, kernel.Route{Interface: "docker9"})
	}, finding.Warning, []string{"the route leads to docker9 (bridge)"}},
	{"Weave's bridge to other nodes", func(_ *testing.T, n *node) {
		n.lan()
		n.link(kernel.Interface{Name: "weave", Index: 9, Kind: "bridge", MTU: 1376, Up: true, Ethernet: true})
		n.link(kernel.Interface{Name: "vethwe-bridge", Index: 10, Kind: "veth", MTU: 1376, Up: true, Master: "weave"})
		n.send(far, kernel.Route{Interface: "weave"})
	}, "", nil},
	{"local route of the node's address", func(_ *testing.T, n *node) { n.lan(); n.Unrouted = []netip.Addr{netip.MustParseAddr("192.168.50.11")} }, finding.Broken,
		[]string{"missing for this node's own addresses", "192.168.50.11 on eth0"}},
	{"few local ports", func(_ *testing.T, n *node) { n.files["/proc/sys/"+localPorts] = "40000\t40000\n" }, finding.Warning,
		[]string{"only 1 port for", "ip_local_port_range = 40000 40000"}},
	{"low TTL", func(_ *testing.T, n *node) { n.files["/proc/sys/"+defaultTTL] = "1\n" }, finding.Warning, []string{"ip_default_ttl", "is 1"}},
}

// TestSuspicions: the finding about failed connections names what may have stopped the packets.
func TestSuspicions(t *testing.T) {
	timeout := func(n *node) { n.Walks[0].Failure = "dial tcp 10.96.0.10:80: i/o timeout" }
	for name, c := range map[string]struct {
		spoil func(*node)
		want  string
	}{
		"nothing":         {func(*node) {}, unexplained},
		"refused":         {func(n *node) { n.Walks[0].Failure = "connection refused"; n.neighbor(router, 2, "", "FAILED") }, unexplained},
		"silent neighbor": {func(n *node) { n.neighbor(router, 2, "", "FAILED") }, "192.168.50.12 does not answer ARP or neighbor solicitations on eth0 (FAILED)"},
		"fixed neighbor":  {func(n *node) { n.neighbor(router, 2, "02:00:00:00:00:99", "PERMANENT") }, "its MAC address 02:00:00:00:00:99 may be wrong"},
		"own MAC":         {func(n *node) { n.neighbor(router, 2, "02:00:00:00:00:01", "STALE") }, "has the MAC address of this node's own eth0"},
		"one MAC, two addresses": {func(n *node) { n.neighbor("192.168.50.13", 2, "02:00:00:00:00:12", "STALE") },
			"192.168.50.12 and 192.168.50.13 have the same MAC address"},
		"no neighbors": {func(n *node) { n.entries = nil }, "the neighbor table may be full"},
		"queue":        {func(n *node) { n.queues = []kernel.Queue{{Interface: 2, Kind: "netem", Loss: 1}} }, "netem, which loses 1 % of the packets"},
		"new address": {func(n *node) {
			n.change("eth0", func(i *kernel.Interface) { i.Networks = []netip.Prefix{netip.MustParsePrefix("172.31.9.9/24")} })
		}, "is in none of the interface's networks (172.31.9.9/24)"},
		"one host in its network": {func(n *node) {
			n.change("eth0", func(i *kernel.Interface) { i.Networks = []netip.Prefix{netip.MustParsePrefix("172.31.9.9/32")} })
		}, unexplained},
		"no address": {func(n *node) {
			n.change(kernel.Device, func(i *kernel.Interface) { i.Networks = []netip.Prefix{netip.MustParsePrefix("10.96.0.10/32")} })
			n.send(far, kernel.Route{Interface: "eth0", Gateway: netip.MustParseAddr(router), Source: ofPlain.Addr.Addr()})
		}, "it sends from 10.96.0.10, the address of a Service"},
		"ports":           {func(n *node) { n.Walks[0].Failure = "connect: cannot assign requested address" }, "ip_local_port_range = 32768 60999"},
		"a counter":       {func(n *node) { n.files["/proc/net/netstat"] = "TcpExt: IPReversePathFilter\nTcpExt: 9\n" }, "IPReversePathFilter grew by 2: the reverse path filter"},
		"another counter": {func(n *node) { n.files["/proc/net/netstat"] = "TcpExt: SyncookiesSent\nTcpExt: 9\n" }, unexplained},
		"drops of an interface": {func(n *node) { n.files["/proc/net/dev"] = "  eth0: 1 2 0 0 0 0 0 0 3 4 0 8 0 0 0 0\n" },
			"eth0 dropped 3 sent packets"},
		"drops of a queue":           {func(n *node) { n.queues = []kernel.Queue{{Interface: 2, Kind: "fq", Drops: 4}} }, "the queue of eth0 dropped 4 packets"},
		"drops of another interface": {func(n *node) { n.files["/proc/net/dev"] = "  eth9: 1 2 0 0 0 0 0 0 3 4 0 8 0 0 0 0\n" }, unexplained},
		"neighbor table of the machine": {func(n *node) {
			n.files["/proc/net/stat/arp_cache"] = "entries table_fulls\n00000028 0000000a\n00000028 0000000b\n"
		}, "table_fulls grew by 21"},
	} {
		n := well()
		n.lan()
		n.Count(n)
		timeout(n)
		c.spoil(n)
		n.Count(n)
		n.Read(n)
		problem := ""
		for _, found := range Examine(n.Facts).Findings {
			if found.Subject == "path" {
				problem = found.Problem
			}
		}
		if !strings.Contains(problem, c.want) {
			t.Errorf("%s: the problem is %q, want %q", name, problem, c.want)
		}
	}
}

// TestSuspiciousPods: the finding about an endpoint on this node names what may have stopped the packets, or the replies.
func TestSuspiciousPods(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*node)
		want  string
	}{
		"no proxy ARP":    {func(n *node) { n.files["/proc/sys/net/ipv4/conf/pod-here/proxy_arp"] = "0\n" }, "no ARP request of the pod for its gateway is answered"},
		"the pod's fault": {func(*node) {}, "so packets reach the pod"},
		"no route": {func(n *node) {
			n.send(here, kernel.Route{Interface: "eth0", Gateway: netip.MustParseAddr("192.168.50.1")})
		}, "the pod is gone or has moved"},
		"no IPv6 gateway": {func(n *node) {
			n.Endpoints[0].Address = netip.MustParseAddrPort("[fd00::2]:8080")
			n.send("fd00::2", kernel.Route{Interface: "pod-here"})
			n.link(kernel.Interface{Name: "pod-also", Kind: "veth", MTU: 1500, Up: true, Ethernet: true, Container: true, Networks: []netip.Prefix{netip.MustParsePrefix("fe80::1/64")}})
		}, "pod-here lacks the address fe80::1"},
	} {
		n := well()
		n.lan()
		n.Endpoints = []Reached{{Address: netip.MustParseAddrPort(here + ":8080"), Pod: "default/here", Failure: "i/o timeout"}}
		c.spoil(n)
		n.Read(n)
		var text string
		for _, found := range Examine(n.Facts).Findings {
			text += strings.Join(found.Evidence, "\n")
		}
		if !strings.Contains(text, "this may be the reason: ") || !strings.Contains(text, c.want) {
			t.Errorf("%s: the evidence is %q, want %q", name, text, c.want)
		}
	}
}

// TestInANamespace: only the machine's own network namespace shows the limits of the neighbor tables.
func TestInANamespace(t *testing.T) {
	n := well()
	for _, sysctl := range neighborLimits {
		delete(n.files, "/proc/sys/"+sysctl)
	}
	n.Read(n)
	if report := Examine(n.Facts); len(report.Findings) > 0 || len(report.Unchecked) != 1 || !strings.HasPrefix(report.Unchecked[0], "neighbor tables: ") {
		t.Errorf("%+v", report)
	}
}
