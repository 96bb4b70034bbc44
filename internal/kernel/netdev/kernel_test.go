package netdev

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/labtest"
)

// node is a fresh network namespace with a backend in it, and vishvananda/netlink and ip as second readers.
type node struct {
	testing.TB
	*Backend
	ns *labtest.Namespace
}

func newNode(t testing.TB) *node {
	t.Helper()
	ns := labtest.NetNS(t)
	b, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
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
	want := map[netip.Addr]struct{}{}
	for _, a := range addrs {
		want[netip.MustParseAddr(a)] = struct{}{}
	}
	if gotExists != exists {
		n.Errorf("device exists: %t", gotExists)
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		n.Errorf("addresses: -want +got\n%s", diff)
	}
}

// others reads the device's addresses with vishvananda/netlink.
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
		t.Errorf("the IPv6 address is to be usable at once: %s", out)
	}
	n.must(n.apply(kernel.Delete, bound("10.96.0.1"), bound("2001:db8::1"), bound("192.0.2.9"), bound("2001:db8::9")))
	n.want(true, "10.96.0.2")
}

func TestOneFailureStopsNoOther(t *testing.T) {
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
	time.Sleep(100 * time.Millisecond) // for the kernel's link-local address
	n.want(true, "10.0.0.1")
	n.must(n.apply(kernel.Delete, bound("10.0.0.1")))
	n.want(true)
}

func TestSysctls(t *testing.T) {
	n := newNode(t)
	const name = "net/ipv4/vs/conntrack"
	n.must(n.apply(kernel.Ensure, kernel.SysctlSetting{Name: name, Value: "1"}))
	values, err := n.ReadSysctls(context.Background(), []string{name, "net/ipv4/vs/nothing"})
	n.must(err)
	if diff := cmp.Diff(map[string]string{name: "1"}, values); diff != "" {
		t.Errorf("sysctls: -want +got\n%s", diff)
	}
	n.run("test $(sysctl -n net.ipv4.vs.conntrack) = 1")
}

// watch starts Watch in the node's namespace and counts its notifications.
func (n *node) watch() (notes *atomic.Int64, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	notes = new(atomic.Int64)
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Never unlocked: the thread ends with the goroutine.
		if err := enter(n.ns); err != nil {
			n.Errorf("enter namespace: %v", err)
			return
		}
		n.Watch(ctx, func() { notes.Add(1) })
	}()
	return notes, func() { cancel(); <-done }
}

// settle waits until there was no notification for a while and returns how many there have been.
func settle(notes *atomic.Int64) int64 {
	for seen := int64(-1); seen != notes.Load(); time.Sleep(500 * time.Millisecond) {
		seen = notes.Load()
	}
	return notes.Swap(0)
}

func TestWatch(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	n := newNode(t)
	notes, stop := n.watch()
	defer stop()
	if settle(notes) == 0 {
		t.Fatal("no notification at the start")
	}
	n.must(n.apply(kernel.Create, kernel.DummyDevice{}))
	n.want(true)
	settle(notes)

	n.must(n.apply(kernel.Create, bound("10.96.0.1"), bound("2001:db8::1"), bound("10.96.0.2")))
	if c := settle(notes); c != 0 {
		t.Errorf("%d notifications of our own additions", c)
	}
	n.must(n.apply(kernel.Delete, bound("10.96.0.2")))
	if c := settle(notes); c != 0 {
		t.Errorf("%d notifications of our own deletions", c)
	}
	for _, command := range []string{
		"ip addr del 10.96.0.1/32 dev kube-ipvs0",
		"ip addr add 10.96.0.7/32 dev kube-ipvs0",
		"ip addr del 2001:db8::1/128 dev kube-ipvs0",
		"ip link set kube-ipvs0 name other",
		"ip link set other name kube-ipvs0 && ip link del kube-ipvs0",
		"ip link add kube-ipvs0 type dummy",
	} {
		n.run(command)
		if settle(notes) == 0 {
			t.Errorf("no notification of %q", command)
		}
		_, _, err := n.ReadDevice(context.Background())
		n.must(err)
	}
	n.run("ip link add veth0 type veth peer name veth1; ip addr add 10.96.0.1/32 dev veth0; ip link del veth0")
	if c := settle(notes); c != 0 {
		t.Errorf("%d notifications of other devices", c)
	}
}

func manyAddresses(count int) []kernel.Object {
	objects := make([]kernel.Object, count)
	for i := range objects {
		objects[i] = bound(fmt.Sprintf("10.96.%d.%d", i/250, i%250+1))
	}
	return objects
}

// TestManyAddresses compares a batch with the usual way; ADDRESSES sets the number.
func TestManyAddresses(t *testing.T) {
	n := newNode(t)
	n.must(n.apply(kernel.Create, kernel.DummyDevice{}))
	count := 1000
	if s := os.Getenv("ADDRESSES"); s != "" {
		if _, err := fmt.Sscan(s, &count); err != nil {
			t.Fatal(err)
		}
	}
	objects := manyAddresses(count)
	timed := func(what string, work func()) {
		start := time.Now()
		work()
		t.Logf("%d addresses, %s: %s", count, what, time.Since(start).Round(time.Millisecond))
	}
	timed("create", func() { n.must(n.apply(kernel.Create, objects...)) })
	timed("read", func() {
		_, addrs, err := n.ReadDevice(context.Background())
		n.must(err)
		if len(addrs) != count {
			t.Errorf("%d addresses on the device", len(addrs))
		}
	})
	timed("delete", func() { n.must(n.apply(kernel.Delete, objects...)) })
	n.want(true)
	timed("create one by one", func() { n.oneByOne(objects) })
}

func (n *node) oneByOne(objects []kernel.Object) {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	n.must(err)
	defer handle.Close()
	link, err := handle.LinkByName(kernel.Device)
	n.must(err)
	for _, o := range objects {
		addr, err := netlink.ParseAddr(o.(kernel.BoundAddress).Addr.String() + "/32")
		n.must(err)
		n.must(handle.AddrAdd(link, addr))
	}
}
