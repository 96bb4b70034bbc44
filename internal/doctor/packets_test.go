package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// ping sets the replies of the endpoint on the other node.
func (n *node) ping(small, large Reply, failure string) {
	n.lan()
	n.Echoed = []Echo{{
		Address: at(far + ":8080"), TCP: true, Pod: "default/far", Node: "node-2", Interface: "eth0", Most: 1500, Size: 1500,
		Small: small, Large: large, Failure: failure,
	}}
}

// probe sets the MAC addresses of the machines that claim this node's address.
func (n *node) probe(macs ...string) {
	n.lan()
	eth0 := slices.IndexFunc(n.links, func(i kernel.Interface) bool { return i.Name == "eth0" })
	n.Probed = []Probed{{Address: netip.MustParseAddr("192.168.50.11"), Interface: n.links[eth0], MACs: macs}}
}

// packets lists results of test packets to other machines, and the expected findings.
var packets = []breakage{
	{"large packets arrive", func(_ *testing.T, n *node) { n.ping(Answered, Answered, "") }, "", nil},
	{"large packets are too big", func(_ *testing.T, n *node) { n.ping(Answered, TooBig, "") }, "", nil},
	{"large packets vanish", func(_ *testing.T, n *node) { n.ping(Answered, Lost, "") }, finding.Warning, []string{
		"path MTU", "small requests work, large ones hang", "10.244.2.2 (pod default/far, node node-2) through eth0", "not of 1500 bytes", "ping -M do",
	}},
	{"nobody claims the address", func(_ *testing.T, n *node) { n.probe() }, "", nil},
	{"another interface of this node claims the address", func(_ *testing.T, n *node) { n.probe("02:00:00:00:00:03") }, "", nil},
	{"another machine claims the address", func(_ *testing.T, n *node) { n.probe("02:00:00:00:00:03", "02:00:00:00:00:99") }, finding.Warning, []string{
		"duplicate addresses", "192.168.50.11 on eth0", "MAC address 02:00:00:00:00:99 answers",
	}},
}

// TestUnmeasuredPaths: an endpoint that does not answer causes no finding, but the report lists its node as not checked. If no endpoint answers,
// the text names no node, so that the reports of many nodes can be merged.
func TestUnmeasuredPaths(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*node)
		want   []string
	}{
		{"no answer", func(n *node) { n.ping(Lost, Unsent, "") }, []string{"large packets to other nodes: " + noEcho}},
		{"no permission", func(n *node) { n.ping(Unsent, Unsent, "not permitted") }, []string{"large packets to other nodes: not permitted"}},
		{"no error for the large one", func(n *node) { n.ping(Answered, Unsent, "") }, []string{"large packets to other nodes: no large packet was sent"}},
		{"an answer from one node only", func(n *node) {
			n.ping(Lost, Unsent, "")
			n.Echoed = append(n.Echoed, n.Echoed[0], Echo{Address: at("10.244.3.2:80"), Node: "node-3", Small: Answered, Large: Answered})
		}, []string{"large packets to node-2: " + noEcho}},
	} {
		n := well()
		c.change(n)
		n.Read(n)
		if report := Examine(n.Facts); len(report.Findings) > 0 || !slices.Equal(report.Unchecked, c.want) {
			t.Errorf("%s: findings %+v, not checked %q; want %q", c.name, report.Findings, report.Unchecked, c.want)
		}
	}
}

// TestLargePacketsAreNeverAssumed: if doctor could not test large packets to an endpoint, the report says so. It contains a finding only if large
// packets were lost.
func TestLargePacketsAreNeverAssumed(t *testing.T) {
	replies := rapid.SampledFrom([]Reply{Unsent, Answered, Lost, TooBig})
	rapid.Check(t, func(t *rapid.T) {
		n := well()
		known, lost := true, false
		for i := range rapid.IntRange(1, 4).Draw(t, "endpoints") {
			e := Echo{
				Address: at("10.244.2.2:80"), Node: fmt.Sprintf("node-%d", i), Size: 1500, Small: replies.Draw(t, "small"), Large: replies.Draw(t, "large"),
				Failure: rapid.SampledFrom([]string{"", "boom"}).Draw(t, "failure"),
			}
			n.Echoed = append(n.Echoed, e)
			measured := e.Failure == "" && e.Small == Answered && e.Large != Unsent
			known, lost = known && measured, lost || measured && e.Large == Lost
		}
		n.Read(n)
		report := Examine(n.Facts)
		if found := report.Verdict != finding.Well; found != lost {
			t.Fatalf("verdict %s for %+v", report.Verdict, n.Echoed)
		}
		if told := len(report.Unchecked) > 0; told == known {
			t.Fatalf("not checked: %q for %+v", report.Unchecked, n.Echoed)
		}
	})
}

// TestEchoes: doctor pings at most four other nodes. On each node, it pings one endpoint for each address family and interface.
func TestEchoes(t *testing.T) {
	n := well()
	n.lan()
	n.link(kernel.Interface{Name: "pod-large", Kind: "veth", MTU: 9000, Up: true, Container: true}) // leads to no known pod
	n.addresses = []kernel.Pod{pod(here, "pod-here")}
	n.ReadPods(n)
	n.ReadNetwork(n)
	add := func(name, addr, node, device string) {
		n.View.Services[0].Frontends[0].Endpoints = append(n.View.Services[0].Frontends[0].Endpoints, ready(addr, node))
		n.send(at(addr).Addr().String(), kernel.Route{Interface: device, Local: name == "local", Failure: map[bool]string{true: "unreachable"}[name == "unrouted"]})
	}
	n.View.Services[0].Frontends[0].Endpoints = nil
	add("this node's", here+":80", "node-1", "pod-here")
	add("unknown node's", "192.168.50.99:6443", "", "eth0")
	add("local", "192.168.50.11:6443", "node-2", "eth0")
	add("unrouted", "10.244.2.9:80", "node-2", "eth0")
	for i := 2; i < 9; i++ {
		add("pod", fmt.Sprintf("10.244.%d.2:80", i), fmt.Sprintf("node-%d", i), "eth0")
		add("another pod", fmt.Sprintf("10.244.%d.3:80", i), fmt.Sprintf("node-%d", i), "eth0")
	}
	add("behind a tunnel", "10.244.8.4:80", "node-8", "flannel.1")
	add("IPv6", "[fd00::8]:80", "node-8", "eth0")
	var have []string
	for _, e := range n.Echoes() {
		have = append(have, fmt.Sprintf("%s via %s up to %d, TCP %t", e.Address, e.Interface, e.Most, e.TCP))
	}
	want := []string{
		"10.244.2.2:80 via eth0 up to 1500, TCP true", "10.244.8.4:80 via flannel.1 up to 1500, TCP true", "[fd00::8]:80 via eth0 up to 1500, TCP true",
		"10.244.3.2:80 via eth0 up to 1500, TCP true", "10.244.4.2:80 via eth0 up to 1500, TCP true", "10.244.8.2:80 via eth0 up to 1500, TCP true",
	}
	if !slices.Equal(have, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(have, "\n"), strings.Join(want, "\n"))
	}
	n.View = nil
	if have := n.Echoes(); len(have) > 0 {
		t.Errorf("without a view: %+v", have)
	}
}

// TestEchoesAreBounded: for any set of endpoints, the limits hold.
func TestEchoesAreBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := Facts{View: &view.View{Node: view.Node{Name: "node-0"}, Services: []view.Service{{Frontends: []view.Frontend{{Protocol: "tcp"}}}}}, Routes: map[netip.Addr]kernel.Route{}}
		for range rapid.IntRange(0, 40).Draw(t, "endpoints") {
			addr := netip.AddrFrom4([4]byte{10, 244, 0, byte(rapid.IntRange(1, 99).Draw(t, "address"))})
			if rapid.Bool().Draw(t, "IPv6") {
				addr = netip.AddrFrom16([16]byte{0xfd, 15: byte(rapid.IntRange(1, 99).Draw(t, "address"))})
			}
			f.Routes[addr] = kernel.Route{Interface: fmt.Sprintf("eth%d", rapid.IntRange(0, 5).Draw(t, "interface"))}
			end := ready(netip.AddrPortFrom(addr, 80).String(), fmt.Sprintf("node-%d", rapid.IntRange(0, 9).Draw(t, "node")))
			f.View.Services[0].Frontends[0].Endpoints = append(f.View.Services[0].Frontends[0].Endpoints, end)
		}
		nodes, ways := map[string]bool{}, map[string]bool{}
		all := f.Echoes()
		for _, e := range all {
			nodes[e.Node], ways[fmt.Sprint(e.Node, e.Interface, inet.FamilyOf(e.Address.Addr()))] = true, true
		}
		if len(all) > maxEchoes || len(nodes) > maxPinged || nodes["node-0"] || len(ways) != len(all) || len(all) == 0 && len(f.remoteEndpoints()) > 0 {
			t.Fatalf("%+v", all)
		}
	})
}

// TestToProbe: doctor probes the first address of each interface that leads to other machines.
func TestToProbe(t *testing.T) {
	n := well()
	n.lan()
	n.change("eth0", func(i *kernel.Interface) {
		for _, p := range []string{"192.168.50.200/32", "fd00:50::11/64"} {
			i.Networks = append([]netip.Prefix{netip.MustParsePrefix(p)}, i.Networks...)
		}
	})
	n.link(kernel.Interface{Name: "wg0", Kind: "wireguard", Up: true, Addressed: true, Networks: []netip.Prefix{netip.MustParsePrefix("10.9.0.1/24")}})
	n.link(kernel.Interface{Name: "eth9", Kind: "device", Up: true, Addressed: true, NoCarrier: true, Ethernet: true, Networks: []netip.Prefix{netip.MustParsePrefix("10.8.0.1/24")}})
	for i := range 6 {
		n.link(kernel.Interface{
			Name: fmt.Sprintf("lan%d", i), Kind: "device", Up: true, Addressed: true, Ethernet: true, Networks: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.7.%d.1/24", i))},
		})
	}
	n.ReadNetwork(n)
	var have []string
	for _, p := range n.ToProbe() {
		have = append(have, p.Address.String()+" "+p.Interface.Name)
	}
	if want := []string{"192.168.50.11 eth0", "10.7.0.1 lan0", "10.7.1.1 lan1", "10.7.2.1 lan2"}; !slices.Equal(have, want) {
		t.Errorf("got %q, want %q", have, want)
	}
}
