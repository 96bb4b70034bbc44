package doctor

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// routed adds pods with interfaces of their own, as Calico creates them.
func (n *node) routed(pods int) {
	gateway := netip.MustParsePrefix("fe80::1/64")
	n.IPv6Servers = 1
	n.files["/proc/sys/"+ipv6Forwarding] = "1\n"
	for i := range pods {
		name := fmt.Sprintf("cali%d", i)
		own := netip.MustParsePrefix(fmt.Sprintf("fe80::ecee:eeff:feee:%x/64", i+1))
		n.link(kernel.Interface{Name: name, Kind: "veth", MTU: 1500, Up: true, Container: true, Networks: []netip.Prefix{own, gateway}})
		n.files["/proc/sys/net/ipv4/conf/"+name+"/forwarding"] = "1\n"
		n.files["/proc/sys/net/ipv4/conf/"+name+"/proxy_arp"] = "1\n"
		n.files["/proc/sys/net/ipv6/conf/"+name+"/disable_ipv6"] = "0\n"
		n.addresses = append(n.addresses, pod(fmt.Sprintf("10.244.0.%d", i+2), name))
	}
	n.ReadPods(n)
}

// change changes the interface of one pod.
func (n *node) change(name string, change func(*kernel.Interface)) {
	for i := range n.links {
		if n.links[i].Name == name {
			change(&n.links[i])
		}
	}
}

// vpn adds an interface of a VPN, and its routes.
func (n *node) vpn(routes ...string) {
	n.link(kernel.Interface{Name: "tun0", Kind: "tun", MTU: 1500, Up: true, Addressed: true})
	for _, r := range routes {
		to, mask, _ := strings.Cut(r, "/")
		n.files["/proc/net/route"] += fmt.Sprintf("tun0\t%s\t00000000\t0001\t0\t0\t0\t%s\n", to, mask)
	}
}

// strict makes the reverse path filter strict; it has dropped some packets.
func (n *node) strict(drops int) {
	n.files["/proc/sys/net/ipv4/conf/all/rp_filter"], n.files["/proc/sys/net/ipv4/conf/eth0/rp_filter"] = "1\n", "1\n"
	n.files["/proc/net/netstat"] = fmt.Sprintf("TcpExt: SyncookiesSent IPReversePathFilter\nTcpExt: 0 %d\nIpExt: InNoRoutes\nIpExt: 7\n", drops)
}

func outsider(addr, device string, complete, halfOpen int) Outsider {
	return Outsider{Question: explain.Question{From: netip.MustParseAddr(addr)}, Interface: device, Complete: complete, HalfOpen: halfOpen}
}

// clients lists defects that only some clients of Services notice: pods and networks.
var clients = []breakage{
	{"pods with interfaces of their own", func(_ *testing.T, n *node) { n.routed(5) }, "", nil},
	{"proxy ARP off", func(_ *testing.T, n *node) {
		n.routed(3)
		n.files["/proc/sys/net/ipv4/conf/cali1/proxy_arp"] = "0\n"
	}, finding.Warning, []string{"interfaces of pods", "cali1 (pod 10.244.0.3): net/ipv4/conf/cali1/proxy_arp = 0"}},
	{"proxy ARP off everywhere", func(_ *testing.T, n *node) {
		n.routed(3)
		for i := range 3 {
			n.files[fmt.Sprintf("/proc/sys/net/ipv4/conf/cali%d/proxy_arp", i)] = "0\n"
		}
	}, "", nil},
	{"proxy ARP off, two pods", func(_ *testing.T, n *node) {
		n.routed(2)
		n.files["/proc/sys/net/ipv4/conf/cali1/proxy_arp"] = "0\n"
	}, "", nil},
	{"forwarding off at a pod", func(_ *testing.T, n *node) {
		n.routed(4)
		n.files["/proc/sys/net/ipv4/conf/cali1/forwarding"] = "0\n"
	}, finding.Warning, []string{"cali1/forwarding = 0"}},
	{"IPv6 off at a pod", func(_ *testing.T, n *node) {
		n.routed(4)
		n.files["/proc/sys/net/ipv6/conf/cali1/disable_ipv6"] = "1\n"
	}, finding.Warning, []string{"cali1/disable_ipv6 = 1"}},
	{"pod without its gateway", func(_ *testing.T, n *node) {
		n.routed(3)
		n.change("cali2", func(i *kernel.Interface) { i.Networks = i.Networks[:1] })
	}, finding.Warning, []string{"cali2 (pod 10.244.0.4) lacks the address fe80::1"}},
	{"pod that is down", func(_ *testing.T, n *node) {
		n.routed(3)
		n.change("cali0", func(i *kernel.Interface) { i.Up = false })
	}, finding.Warning,
		[]string{"cali0 (pod 10.244.0.2) is down"}},
	{"pod on a bridge, routed", func(_ *testing.T, n *node) {
		n.routed(1)
		n.link(kernel.Interface{Name: "br0", Kind: "bridge", MTU: 1500, Up: true})
		n.change("cali0", func(i *kernel.Interface) { i.Master = "br0" })
	}, finding.Warning, []string{"cali0 (pod 10.244.0.2) belongs to the bridge br0"}},
	{"pod in a VRF", func(_ *testing.T, n *node) {
		n.routed(3)
		n.link(kernel.Interface{Name: "vrf0", Kind: "vrf", MTU: 1500, Up: true})
		n.change("cali0", func(i *kernel.Interface) { i.Master = "vrf0" })
	}, "", nil},
	{"pod that left its bridge", func(_ *testing.T, n *node) {
		for i := range 3 {
			n.link(kernel.Interface{Name: fmt.Sprintf("veth%d", i), Kind: "veth", MTU: 1500, Up: true, Master: []string{"cni0", "cni0", ""}[i], Container: true})
		}
		n.link(kernel.Interface{Name: "cni0", Kind: "bridge", MTU: 1500, Up: true, Addressed: true})
	}, finding.Warning, []string{"veth2 belongs to no bridge, and no route leads to it"}},
	{"pods without routes, as Cilium has them", func(_ *testing.T, n *node) {
		for i := range 3 {
			n.link(kernel.Interface{Name: fmt.Sprintf("lxc%d", i), Kind: "veth", MTU: 1500, Up: true, Container: true})
		}
	}, "", nil},
	{"pod with a small MTU", func(_ *testing.T, n *node) {
		n.routed(3)
		n.change("cali0", func(i *kernel.Interface) { i.MTU = 1000 })
	}, finding.Notice,
		[]string{"cali0 (pod 10.244.0.2) has MTU 1000, most have MTU 1500"}},
	{"address of a pod on this node", func(_ *testing.T, n *node) {
		n.routed(3)
		n.link(kernel.Interface{Name: "dup", Kind: "dummy", MTU: 1500, Up: true, Networks: []netip.Prefix{netip.MustParsePrefix("10.244.0.3/32")}})
	}, finding.Broken, []string{"10.244.0.3, the address of the pod behind cali1, is also an address of dup"}},

	{"strict reverse path beside a VPN", func(_ *testing.T, n *node) { n.vpn("0000000A/000000FF"); n.strict(4) }, finding.Warning,
		[]string{"reverse path filter", "4 packets dropped", "packets to 10.0.0.0/8 leave through tun0", "eth0/rp_filter=2"}},
	{"strict reverse path beside a VPN that nobody notices", func(_ *testing.T, n *node) { n.vpn("0000000A/000000FF"); n.strict(0) }, "", nil},
	{"strict reverse path that has dropped packets", func(_ *testing.T, n *node) { n.pods(1500); n.strict(4) }, "", nil},
	{"strict reverse path and a VPN for everything", func(_ *testing.T, n *node) { n.vpn("00000000/00000080", "00000080/00000080"); n.strict(4) }, finding.Warning,
		[]string{"eth0/rp_filter = 1", "packets to 128.0.0.0/1 leave through tun0"}},
	{"a VPN for everything", func(_ *testing.T, n *node) { n.vpn("00000000/00000080", "00000080/00000080") }, "", nil},
	{"replies that take the VPN", func(_ *testing.T, n *node) {
		n.vpn("00000000/00000080", "00000080/00000080")
		n.Outsiders = []Outsider{outsider("198.51.100.11", "tun0", 0, 3), outsider("192.0.2.9", "eth0", 2, 0)}
	}, finding.Warning, []string{"replies to clients", "198.51.100.11: 3 half-open connections, none complete; the route to this client leads to tun0"}},
	{"clients in the VPN", func(_ *testing.T, n *node) {
		n.vpn("0000000A/000000FF")
		n.Outsiders = []Outsider{outsider("10.0.0.7", "tun0", 1, 0), outsider("10.0.0.8", "tun0", 0, 4)}
	}, "", nil},
	{"half-open connections by the default route", func(_ *testing.T, n *node) {
		n.Outsiders = []Outsider{outsider("198.51.100.11", "eth0", 0, 4)}
	}, "", nil},
}

// TestDefaultRoutes: an interface with routes to both halves of all addresses is an uplink, and one with a route to one half is not.
func TestDefaultRoutes(t *testing.T) {
	n := well()
	n.vpn("00000000/00000080")
	n.files["/proc/net/ipv6_route"] = lookback6 +
		"00000000000000000000000000000000 01 00000000000000000000000000000000 00 00000000000000000000000000000000 00000400 00000001 00000000 00000001     tun6\n" +
		"80000000000000000000000000000000 01 00000000000000000000000000000000 00 00000000000000000000000000000000 00000400 00000001 00000000 00000001     tun6\n"
	n.Read(n)
	if have := fmt.Sprint(n.Uplinks, n.Halves, n.Elsewhere); have != "[eth0 tun6] [tun6] [packets to 0.0.0.0/1 leave through tun0]" {
		t.Error(have)
	}
}

// TestFailedEndpointsDecide: if doctor connects to one pod and not to others, the difference between them is the cause.
func TestFailedEndpointsDecide(t *testing.T) {
	n := well()
	n.routed(3)
	for _, name := range []string{"cali0", "cali1"} {
		n.files["/proc/sys/net/ipv4/conf/"+name+"/proxy_arp"] = "0\n"
	}
	n.Endpoints = []Reached{{Address: at("10.244.0.2:8080"), Failure: "i/o timeout"}, {Address: at("10.244.0.4:8080")}}
	n.Read(n)
	found := checkPodInterfaces(n.Facts)
	if len(found) != 1 || len(found[0].Evidence) != 2 || !strings.Contains(found[0].Evidence[0], "cali0 (pod 10.244.0.2)") {
		t.Errorf("%+v", found)
	}
	n.Endpoints[1].Failure = "connection refused" // the pod responds
	if found := checkPodInterfaces(n.Facts); len(found) > 0 {
		t.Errorf("%+v", found)
	}
}

// TestOutsiders: half-open connections count if their endpoint has a complete connection. This node is not an outsider.
func TestOutsiders(t *testing.T) {
	client := netip.MustParseAddr("198.51.100.11")
	connection := func(from, to, state string) kernel.Connection {
		return kernel.Connection{Protocol: "TCP", Client: at(from), Virtual: at("10.96.0.10:80"), Destination: at(to), State: state}
	}
	k := &explain.Kernel{
		State:  &kernel.State{Addresses: map[netip.Addr]kernel.Binding{netip.MustParseAddr("10.96.0.10"): kernel.OnDevice}},
		Routes: map[netip.Addr]kernel.Route{client: {Interface: "tun0"}},
		Connections: []kernel.Connection{
			connection("10.96.0.10:5000", "10.244.0.2:8080", "TIME_WAIT"), connection("198.51.100.11:4000", "10.244.0.2:8080", "SYN_RECV"),
			connection("198.51.100.11:4001", "10.244.0.3:8080", "SYN_RECV"), connection("198.51.100.11:0", "10.244.0.2:8080", "NONE"),
		},
	}
	want := Outsider{
		Question: explain.Question{To: kernel.ServerKey{Addr: at("10.96.0.10:80"), Protocol: inet.TCP}, From: client}, Interface: "tun0", HalfOpen: 1,
	}
	if have := OutsidersOf(k); len(have) != 1 || have[0] != want || len(HalfOpen(k, 2)) != 1 {
		t.Errorf("%+v", have)
	}
}
