package netdev

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

// node is a new network namespace with a backend. Tests compare the backend with vishvananda/netlink and ip.
type node struct {
	testing.TB
	*Backend
	ns *labtest.Namespace
}

func newNode(t testing.TB) *node {
	t.Helper()
	ns := labtest.NetNS(t)
	b, err := New()
	labtest.Opened(t, b, err)
	b.resolverFiles = nil // the namespaces share the machine's files
	return &node{t, b, ns}
}

func (n *node) apply(verb kernel.Verb, objects ...kernel.Object) error {
	ops := make([]kernel.Op, len(objects))
	for i, o := range objects {
		ops[i] = kernel.Op{Verb: verb, Object: o}
	}
	return errors.Join(n.Apply(context.Background(), ops)...)
}

func (n *node) must(err error) {
	n.Helper()
	if err != nil {
		n.Fatal(err)
	}
}

func (n *node) run(command string) {
	n.Helper()
	if out, err := exec.Command("sh", "-c", command).CombinedOutput(); err != nil {
		n.Fatalf("%s: %v: %s", command, err, out)
	}
}

func (n *node) want(exists bool, addrs ...string) {
	n.Helper()
	gotExists, got, err := n.ReadDevice(context.Background())
	n.must(err)
	want := map[netip.Addr]kernel.Binding{}
	for _, a := range addrs {
		want[netip.MustParseAddr(a)] = kernel.OnDevice
	}
	if gotExists != exists {
		n.Errorf("device exists: %t", gotExists)
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		n.Errorf("addresses: -want +got\n%s", diff)
	}
}

func (n *node) others() []string {
	n.Helper()
	link, err := netlink.LinkByName(kernel.Device)
	n.must(err)
	list, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	n.must(err)
	var addrs []string
	for _, a := range list {
		addrs = append(addrs, a.IPNet.String())
	}
	slices.Sort(addrs)
	return addrs
}

func TestDevice(t *testing.T) {
	n := newNode(t)
	n.want(false)
	n.must(n.apply(kernel.Delete, kernel.DummyDevice{}))
	n.must(n.apply(kernel.Create, kernel.DummyDevice{}))
	n.want(true)
	if err := n.apply(kernel.Create, kernel.DummyDevice{}); !errors.Is(err, kernel.ErrExists) {
		t.Errorf("second Create: %v, want ErrExists", err)
	}
	link, err := netlink.LinkByName(kernel.Device)
	n.must(err)
	if link.Type() != "dummy" || link.Attrs().RawFlags&unix.IFF_UP != 0 {
		t.Errorf("device is of type %s with flags %v, want a dummy that is down", link.Type(), link.Attrs().Flags)
	}
	n.must(n.apply(kernel.Create, bound("10.96.0.1")))
	n.must(n.apply(kernel.Delete, kernel.DummyDevice{}))
	n.want(false)
	n.must(n.apply(kernel.Delete, bound("10.96.0.1")))
	if err := n.apply(kernel.Create, bound("10.96.0.1")); !errors.Is(err, kernel.ErrNotFound) {
		t.Errorf("address without device: %v, want ErrNotFound", err)
	}
}

func TestLowMTU(t *testing.T) {
	n := newNode(t)
	n.must(n.apply(kernel.Create, kernel.DummyDevice{}, bound("10.96.0.1"), bound("fd00::1")))
	n.want(true, "10.96.0.1", "fd00::1")
	n.run("ip link set kube-ipvs0 mtu 68")
	n.want(true, "10.96.0.1")
	n.must(n.apply(kernel.Create, bound("10.96.0.2")))
	n.must(n.apply(kernel.Create, bound("fd00::1")))
	n.want(true, "10.96.0.1", "10.96.0.2", "fd00::1")
}

func TestForeignDeviceIsLeftAlone(t *testing.T) {
	n := newNode(t)
	n.run("ip link add kube-ipvs0 type bridge && ip addr add 10.0.0.1/32 dev kube-ipvs0")
	n.want(false)
	for verb, object := range map[kernel.Verb]kernel.Object{kernel.Create: kernel.DummyDevice{}, kernel.Delete: bound("10.0.0.1")} {
		if err := n.apply(verb, object); err == nil || !strings.Contains(err.Error(), "bridge") {
			t.Errorf("verb %d of %s: %v, want an error about the bridge", verb, object, err)
		}
	}
	n.run("ip addr show dev kube-ipvs0 | grep -q 10.0.0.1")
}

func TestAddresses(t *testing.T) {
	n := newNode(t)
	n.must(n.apply(kernel.Create, kernel.DummyDevice{}))
	n.must(n.apply(kernel.Create, bound("10.96.0.1"), bound("2001:db8::1"), bound("10.96.0.2")))
	n.must(n.apply(kernel.Create, bound("10.96.0.1"), bound("2001:db8::1")))
	n.want(true, "10.96.0.1", "10.96.0.2", "2001:db8::1")
	if diff := cmp.Diff([]string{"10.96.0.1/32", "10.96.0.2/32", "2001:db8::1/128"}, n.others()); diff != "" {
		t.Errorf("netlink lists: -want +got\n%s", diff)
	}
	out, err := exec.Command("ip", "-6", "addr", "show", "dev", kernel.Device).Output()
	n.must(err)
	if !strings.Contains(string(out), "nodad") || strings.Contains(string(out), "tentative") {
		t.Errorf("the IPv6 address is not usable immediately: %s", out)
	}
	n.must(n.apply(kernel.Delete, bound("10.96.0.1"), bound("2001:db8::1"), bound("192.0.2.9"), bound("2001:db8::9")))
	n.want(true, "10.96.0.2")
}

func TestFailureStopsNoOtherOperation(t *testing.T) {
	n := newNode(t)
	n.must(n.apply(kernel.Create, kernel.DummyDevice{}))
	ops := []kernel.Op{
		{Verb: kernel.Create, Object: bound("10.96.0.1")},
		{Verb: kernel.Create, Object: bound("ff02::1")}, // no interface can have a multicast address
		{Verb: kernel.Create, Object: bound("10.96.0.2")},
	}
	errs := n.Apply(context.Background(), ops)
	if errs[0] != nil || errs[1] == nil || errs[2] != nil {
		t.Errorf("errors are %v, want one for %s", errs, ops[1])
	}
	n.want(true, "10.96.0.1", "10.96.0.2")
}

func TestIPv6Disabled(t *testing.T) {
	n := newNode(t)
	n.must(n.apply(kernel.Create, kernel.DummyDevice{}))
	n.run("sysctl -qw net.ipv6.conf.kube-ipvs0.disable_ipv6=1")
	err := n.apply(kernel.Create, bound("2001:db8::1"), bound("10.96.0.1"))
	if err == nil || !strings.Contains(err.Error(), "disable_ipv6") {
		t.Errorf("error %v does not name disable_ipv6", err)
	}
	n.want(true, "10.96.0.1")
}

func TestForeignAddresses(t *testing.T) {
	n := newNode(t)
	n.must(n.apply(kernel.Create, kernel.DummyDevice{}))
	n.run("ip addr add 10.0.0.1/24 dev kube-ipvs0; ip addr add 192.0.2.1/32 dev lo; ip link set kube-ipvs0 up")
	n.awaitLinkLocal()
	n.want(true, "10.0.0.1")
	n.must(n.apply(kernel.Delete, bound("10.0.0.1")))
	n.want(true)
}

func (n *node) awaitLinkLocal() {
	n.Helper()
	n.run("for i in $(seq 300); do ip -6 addr show dev kube-ipvs0 scope link | grep -q fe80 && exit; sleep 0.1; done; exit 1")
}

func TestSysctls(t *testing.T) {
	n := newNode(t)
	n.run("iptables -A INPUT -m conntrack --ctstate NEW") // enables connection tracking in the namespace
	want := map[string]string{
		"net/ipv4/vs/conntrack":                               "1",
		"net/ipv4/conf/all/arp_ignore":                        "1",
		"net/ipv4/conf/all/arp_announce":                      "2",
		"net/netfilter/nf_conntrack_tcp_timeout_established":  "86400",
		"net/netfilter/nf_conntrack_tcp_timeout_close_wait":   "3600",
		"net/netfilter/nf_conntrack_tcp_be_liberal":           "1",
		"net/netfilter/nf_conntrack_udp_timeout":              "31",
		"net/netfilter/nf_conntrack_udp_timeout_stream":       "121",
		"net/netfilter/nf_conntrack_sctp_timeout_established": "211",
		"net/ipv6/conf/all/forwarding":                        "1",
	}
	names := []string{"net/ipv4/vs/nothing"}
	for name, value := range want {
		n.must(n.apply(kernel.Ensure, kernel.SysctlSetting{Name: name, Value: value}))
		names = append(names, name)
	}
	values, err := n.ReadSysctls(context.Background(), names)
	n.must(err)
	if diff := cmp.Diff(want, values); diff != "" {
		t.Errorf("sysctls: -want +got\n%s", diff)
	}
	n.run("test $(sysctl -n net.ipv4.vs.conntrack) = 1")
}

func TestSysctlOfTheWholeMachine(t *testing.T) {
	n := newNode(t)
	const name = "net/netfilter/nf_conntrack_max"
	values, err := n.ReadSysctls(context.Background(), []string{name})
	n.must(err)
	err = n.apply(kernel.Ensure, kernel.SysctlSetting{Name: name, Value: "123456"})
	for _, text := range []string{"whole machine", "hostNetwork: true", "sysctl -w net.netfilter.nf_conntrack_max=123456"} {
		if !errors.Is(err, kernel.ErrUnavailable) || !strings.Contains(err.Error(), text) {
			t.Errorf("error %v does not contain %q", err, text)
		}
	}
	if values[name] == "" || values[name] == "123456" {
		t.Errorf("read %v", values)
	}
}

func TestNodeAddressesOrNothing(t *testing.T) {
	n := newNode(t)
	n.run("ip addr add 192.0.2.9/32 dev lo")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if addrs, err := n.NodeAddresses(ctx); !errors.Is(err, context.Canceled) || addrs != nil {
		t.Errorf("canceled: %v, %v", addrs, err)
	}
	n.run("ip link add kube-ipvs0 type bridge && ip addr add 10.0.0.1/32 dev kube-ipvs0")
	n.wantNode("10.0.0.1", "192.0.2.9") // the device is a bridge, so it is not ours
}

func TestRenamedDevice(t *testing.T) {
	n := newNode(t)
	n.must(n.apply(kernel.Create, kernel.DummyDevice{}, bound("10.96.0.1"), bound("fd00::1")))
	n.run("ip link set kube-ipvs0 name old")
	n.wantNode()
	n.want(false)
	n.must(n.apply(kernel.Create, kernel.DummyDevice{}, bound("10.96.0.1"), bound("10.96.0.2")))
	n.want(true, "10.96.0.1", "10.96.0.2", "fd00::1")
}

func TestNetwork(t *testing.T) {
	n := newNode(t)
	w := n.watch()
	defer w.stop()
	n.must(n.apply(kernel.Create, kernel.DummyDevice{}, bound("10.96.0.1"), bound("2001:db8::1")))
	n.run("ip link add eth0 type dummy; ip link set eth0 up; ip addr add 192.0.2.9/26 dev eth0; ip addr add 203.0.113.1/31 dev eth0; " +
		"ip addr add 198.18.0.1/24 brd 198.18.0.77 dev eth0; ip addr add 2001:db8:1::1/64 dev eth0 nodad; " +
		"ip route add default via 192.0.2.1; ip -6 route add default via 2001:db8:1::2; " +
		"ip route add 198.51.100.0/24 via 192.0.2.3; ip route add default via 192.0.2.4 table 7; ip route add broadcast 198.18.9.9 dev eth0 table local; " +
		"ip route add 198.51.101.0/24 via inet6 2001:db8:1::3 dev eth0")
	v4, odd, v6 := netip.MustParsePrefix("192.0.2.0/26"), netip.MustParsePrefix("198.18.0.0/24"), netip.MustParsePrefix("2001:db8:1::/64")
	want := kernel.Network{}
	for _, gateway := range []string{"192.0.2.1", "192.0.2.3", "192.0.2.4", "2001:db8:1::2", "2001:db8:1::3"} {
		want[netip.MustParseAddr(gateway)] = kernel.NetworkRole{Kind: kernel.Gateway}
	}
	for _, subnet := range []netip.Prefix{v4, odd, v6} {
		want[subnet.Addr()] = kernel.NetworkRole{Kind: kernel.SubnetAddress, Subnet: subnet}
		if subnet.Addr().Is4() && labtest.OnKernel("5.10") { // later kernels have no broadcast route for this address
			want[subnet.Addr()] = kernel.NetworkRole{Kind: kernel.Broadcast, Subnet: subnet}
		}
	}
	for addr, subnet := range map[string]netip.Prefix{"192.0.2.63": v4, "198.18.0.255": odd, "198.18.0.77": odd} {
		want[netip.MustParseAddr(addr)] = kernel.NetworkRole{Kind: kernel.Broadcast, Subnet: subnet}
	}
	lone := netip.MustParseAddr("198.18.9.9")
	want[lone] = kernel.NetworkRole{Kind: kernel.Broadcast, Subnet: netip.PrefixFrom(lone, 32)}
	n.wantNetwork(want)
	w.takeMoved()
	n.run("ip route add 198.51.102.0/24 via 192.0.2.3; ip route add 198.51.103.0/24 dev eth0; ip route del 198.51.102.0/24")
	n.must(n.apply(kernel.Create, bound("10.96.0.2"), bound("2001:db8::2")))
	if c := w.takeMoved(); c != 0 {
		t.Errorf("got %d notifications of routes without a new gateway", c)
	}
	n.run("ip route replace default via 192.0.2.7")
	w.awaitMoved("a new default route")
	delete(want, netip.MustParseAddr("192.0.2.1"))
	want[netip.MustParseAddr("192.0.2.7")] = kernel.NetworkRole{Kind: kernel.Gateway}
	n.wantNetwork(want)
	w.takeMoved()
	n.run("ip -6 route add 2001:db8:2::/64 nexthop via 2001:db8:1::2 nexthop via 2001:db8:1::4")
	w.awaitMoved("a new gateway among several")
	want[netip.MustParseAddr("2001:db8:1::4")] = kernel.NetworkRole{Kind: kernel.Gateway}
	n.wantNetwork(want)
}

// TestNexthopObjects: a gateway is known even if routes name only a next hop object, as routing daemons may choose.
func TestNexthopObjects(t *testing.T) {
	n := newNode(t)
	if err := os.WriteFile(SysctlFile("net/ipv4/nexthop_compat_mode"), []byte("0"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"ip link add eth0 type dummy", "ip link set eth0 up", "ip addr add 192.0.2.1/24 dev eth0", "ip -6 addr add 2001:db8:1::1/64 dev eth0 nodad",
		"ip nexthop add id 7 via 192.0.2.254 dev eth0", "ip nexthop add id 8 via 2001:db8:1::9 dev eth0", "ip route add default nhid 7", "ip -6 route add default nhid 8",
	} {
		n.run(line)
	}
	have, err := n.Network(context.Background())
	n.must(err)
	for _, gateway := range []string{"192.0.2.254", "2001:db8:1::9"} {
		if role := have[netip.MustParseAddr(gateway)]; role.Kind != kernel.Gateway {
			t.Errorf("%s is %v in %v", gateway, role, have)
		}
	}
}

func (n *node) wantNetwork(want kernel.Network) {
	n.Helper()
	have, err := n.Network(context.Background())
	n.must(err)
	if diff := cmp.Diff(want, have, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
		n.Errorf("-want +have\n%s", diff)
	}
}

func TestBridges(t *testing.T) {
	n := newNode(t)
	for _, line := range []string{
		"ip link add cni0 type bridge",
		"ip addr add 10.244.0.1/24 dev cni0",
		"ip -6 addr add fd00:10:244::1/64 dev cni0 nodad",
		"ip link set cni0 up",
		"ip link add virbr0 type bridge",
		"ip netns add kube-ipvs-bridged",
		"ip link add pod type veth peer name eth0 netns kube-ipvs-bridged",
		"ip link set pod master cni0",
		"ip link add here type veth peer name there",
		"ip link set here master virbr0",
	} {
		n.run(line)
	}
	t.Cleanup(func() { n.run("ip netns del kube-ipvs-bridged") })
	// These sysctls exist only if the module br_netfilter is loaded.
	filtered := map[inet.Family]bool{}
	for _, f := range inet.Families {
		if err := os.WriteFile(SysctlFile(kernel.BridgeFilter(f)), []byte("1"), 0o644); err == nil {
			filtered[f] = true
		}
	}
	want := []kernel.Bridge{{Name: "cni0", Containers: true, Families: inet.Families, Filtered: filtered}, {Name: "virbr0", Filtered: filtered}}
	got, err := n.Bridges()
	if err != nil {
		t.Fatal(err)
	}
	falseIsAbsent := cmpopts.IgnoreMapEntries(func(_ inet.Family, filtered bool) bool { return !filtered })
	if diff := cmp.Diff(want, got, falseIsAbsent, cmpopts.EquateEmpty()); diff != "" {
		t.Error(diff)
	}
}

func TestInterfaces(t *testing.T) {
	n := newNode(t)
	for _, line := range []string{
		"ip link add eth0 type dummy",
		"ip addr add 192.0.2.1/24 dev eth0",
		"ip link set eth0 up mtu 1400",
		"ip link add link eth0 name eth0.5 type vlan id 5",
		"ip link add cni0 type bridge",
		"ip netns add kube-ipvs-listed",
		"ip link add pod type veth peer name eth0 netns kube-ipvs-listed",
		"ip link set pod master cni0",
		"ip link add flow type vxlan external dstport 4789",
		"ip link add flannel.1 type vxlan id 1 dstport 8472",
	} {
		n.run(line)
	}
	t.Cleanup(func() { n.run("ip netns del kube-ipvs-listed") })
	want := map[string]kernel.Interface{
		"eth0":      {Kind: "dummy", MTU: 1400, Up: true, Addressed: true, NoARP: true},
		"eth0.5":    {Kind: "vlan", MTU: 1400, Parent: "eth0", NoARP: true},
		"cni0":      {Kind: "bridge", MTU: 1500},
		"pod":       {Kind: "veth", MTU: 1500, Master: "cni0", Container: true},
		"flow":      {Kind: "vxlan", PerPacket: true},
		"flannel.1": {Kind: "vxlan"},
	}
	got, err := n.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range got {
		w, listed := want[i.Name]
		delete(want, i.Name)
		if i.Kind == "vxlan" {
			i.MTU = 0 // the MTU depends on the kernel
		}
		w.Name, w.Index, w.Ethernet, w.MAC, w.Networks = i.Name, i.Index, true, i.MAC, i.Networks
		if listed && (!reflect.DeepEqual(i, w) || i.MAC == "") {
			t.Errorf("have %+v, want %+v", i, w)
		}
		if i.Name == "eth0" && !slices.Contains(i.Networks, netip.MustParsePrefix("192.0.2.1/24")) {
			t.Errorf("the addresses of eth0 are %v", i.Networks)
		}
	}
	if len(want) > 0 {
		t.Errorf("not listed: %v", want)
	}
}
