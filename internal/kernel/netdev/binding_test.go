package netdev

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

func routed(addr string) kernel.BoundAddress {
	return kernel.BoundAddress{Addr: netip.MustParseAddr(addr), Binding: kernel.Routed}
}

func moved(a kernel.BoundAddress) kernel.BoundAddress { a.Moved = true; return a }

func newNodeWithDevice(t testing.TB) *node {
	n := newNode(t)
	n.must(n.apply(kernel.Create, kernel.DummyDevice{}))
	return n
}

// wantBound reads with a new backend, like an agent that has just started.
func (n *node) wantBound(want map[string]kernel.Binding) {
	n.Helper()
	b, err := New()
	labtest.Opened(n, b, err)
	_, have, err := b.ReadDevice(context.Background())
	n.must(err)
	got := map[string]kernel.Binding{}
	for addr, binding := range have {
		got[addr.String()] = binding
	}
	if diff := cmp.Diff(want, got); diff != "" {
		n.Errorf("bound addresses: -want +got\n%s", diff)
	}
}

// TestMovedAddressStaysLocal asks the kernel for the route to an address after each step from one binding to the other. When kube-ipvs0 loses
// its last IPv4 address, the kernel removes all IPv4 routes to it.
func TestMovedAddressStaysLocal(t *testing.T) {
	n := newNodeWithDevice(t)
	const one, two = "10.96.0.1", "10.96.0.2"
	n.must(n.apply(kernel.Create, bound(one), bound(two)))
	for _, step := range []struct {
		name    string
		objects []kernel.Object
		want    kernel.Binding
		others  []string
	}{
		{"killed after the routes were added", []kernel.Object{routed(one), routed(two)}, kernel.BoundTwice, []string{one + "/32", two + "/32", "127.0.0.117/32"}},
		{"routes", []kernel.Object{moved(routed(one)), moved(routed(two))}, kernel.Routed, []string{"127.0.0.117/32"}},
		{"killed after the addresses were added", []kernel.Object{bound(one), bound(two)}, kernel.BoundTwice, []string{one + "/32", two + "/32", "127.0.0.117/32"}},
		{"addresses again", []kernel.Object{moved(bound(one)), moved(bound(two))}, kernel.OnDevice, []string{one + "/32", two + "/32", "127.0.0.117/32"}},
		{"routes in one step", []kernel.Object{moved(routed(one)), moved(routed(two))}, kernel.Routed, []string{"127.0.0.117/32"}},
		{"again", []kernel.Object{moved(routed(one)), moved(routed(two))}, kernel.Routed, []string{"127.0.0.117/32"}},
	} {
		n.must(n.apply(kernel.Create, step.objects...))
		n.wantBound(map[string]kernel.Binding{one: step.want, two: step.want})
		if diff := cmp.Diff(step.others, n.others()); diff != "" {
			t.Errorf("%s: addresses of kube-ipvs0: -want +got\n%s", step.name, diff)
		}
		for _, addr := range []string{one, two} {
			route, err := n.RouteTo(netip.MustParseAddr(addr), 0)
			if err != nil || !route.Local || route.Source.String() != addr {
				t.Errorf("%s: the route to %s is %+v, %v", step.name, addr, route, err)
			}
			if l, err := net.Listen("tcp4", addr+":0"); err != nil {
				t.Errorf("%s: a program cannot bind %s: %v", step.name, addr, err)
			} else {
				_ = l.Close()
			}
		}
	}
	n.wantNode()
	n.run("ip link set kube-ipvs0 up; ip link set kube-ipvs0 down; ip addr add 10.0.0.1/24 dev kube-ipvs0; ip addr del 10.0.0.1/24 dev kube-ipvs0")
	n.wantBound(map[string]kernel.Binding{one: kernel.Routed, two: kernel.Routed})
	n.must(n.apply(kernel.Delete, routed(one), routed(two)))
	n.wantBound(map[string]kernel.Binding{})
}

// TestFailedMoveKeepsTheAddress: the kernel rejects an IPv4 route to an IPv6 address.
func TestFailedMoveKeepsTheAddress(t *testing.T) {
	n := newNodeWithDevice(t)
	n.must(n.apply(kernel.Create, bound("fd00::1"), bound("10.96.0.1")))
	if err := n.apply(kernel.Create, moved(routed("fd00::1")), moved(routed("10.96.0.1"))); err == nil {
		t.Error("no error")
	}
	n.wantBound(map[string]kernel.Binding{"fd00::1": kernel.OnDevice, "10.96.0.1": kernel.Routed})
}

func TestForeignLocalRoutes(t *testing.T) {
	n := newNodeWithDevice(t)
	n.must(n.apply(kernel.Create, routed("10.96.0.1")))
	n.run("ip route add local 10.97.0.1 dev kube-ipvs0; ip route add local 10.98.0.0/24 dev kube-ipvs0 table local proto 117; " +
		"ip route add local 10.99.0.1 dev kube-ipvs0 table 7 proto 117; ip route add local 10.99.0.2 dev lo table local proto 117")
	n.wantBound(map[string]kernel.Binding{"10.96.0.1": kernel.Routed})
	n.must(n.apply(kernel.Delete, routed("10.97.0.1"), routed("10.98.0.0"), routed("10.99.0.2"), routed("10.96.0.1")))
	n.wantBound(map[string]kernel.Binding{})
	n.run("ip route show table local dev lo | grep -q 10.99.0.2")
}

func TestWatchReportsRemovedRoutes(t *testing.T) {
	n := newNodeWithDevice(t)
	_, _, err := n.ReadDevice(context.Background())
	n.must(err)
	w := n.watch()
	defer w.stop()
	w.handleAll()
	w.disturbed.Store(0)
	n.must(n.apply(kernel.Create, routed("10.96.0.1"), routed("10.96.0.2"), routed("10.96.0.4"), bound("10.96.0.3")))
	w.handleAll()
	n.must(n.apply(kernel.Create, moved(routed("10.96.0.3"))))
	w.handleAll()
	n.must(n.apply(kernel.Delete, routed("10.96.0.2")))
	w.handleAll()
	if c := w.disturbed.Load(); c != 0 {
		t.Errorf("our own changes caused %d notifications", c)
	}
	for i, command := range []string{
		"ip route del local 10.96.0.1 dev kube-ipvs0 table local",
		"ip route add local 10.96.0.1 dev kube-ipvs0 table local proto 117",
		"ip addr flush dev kube-ipvs0", // the kernel sends no events for the routes that it removes
	} {
		n.run(command)
		w.handleAll()
		if c := w.disturbed.Load(); c != int64(i)+1 {
			t.Errorf("%s: %d notifications so far", command, c)
		}
	}
	n.wantBound(map[string]kernel.Binding{})
}

// The removal of 127.0.0.117 may remove all routes. If it does not, the removal of a route is still reported.
func TestWatchReportsRemovedRoutesAfterTheAnchor(t *testing.T) {
	n := newNodeWithDevice(t)
	n.must(n.apply(kernel.Create, routed("10.96.0.1")))
	n.run("ip addr add 192.0.2.9/32 dev kube-ipvs0")
	_, _, err := n.ReadDevice(context.Background())
	n.must(err)
	w := n.watch()
	defer w.stop()
	w.handleAll()
	w.disturbed.Store(0)
	for i, command := range []string{"ip addr del 127.0.0.117/32 dev kube-ipvs0", "ip route del local 10.96.0.1 dev kube-ipvs0 table local"} {
		n.run(command)
		w.handleAll()
		if c := w.disturbed.Load(); c != int64(i)+1 {
			t.Errorf("%s: %d notifications so far", command, c)
		}
	}
}

// An interface without addresses borrows the first one of another interface. kube-ipvs0 is the first interface here.
func TestAnchorIsNoSource(t *testing.T) {
	n := newNodeWithDevice(t)
	n.must(n.apply(kernel.Create, routed("10.96.0.1")))
	n.run("ip link add uplink type dummy; ip addr add 192.0.2.1/24 dev uplink; ip link add bare type dummy; ip link set bare up; " +
		"ip route add 10.244.0.5 dev bare")
	route, err := n.RouteTo(netip.MustParseAddr("10.244.0.5"), 0)
	n.must(err)
	if route.Source.String() != "192.0.2.1" {
		t.Errorf("the node sends from %s", route.Source)
	}
}

// Kernels before 4.20 do not filter dumps.
func TestUnfilteredRoutes(t *testing.T) {
	n := newNodeWithDevice(t)
	n.must(n.apply(kernel.Create, routed("10.96.0.1"), bound("10.96.0.2")))
	filtered := n.routes
	defer func() { n.routes = filtered }() // Close closes both
	n.routes = n.addrs
	n.run("ip route add local 10.97.0.1 dev kube-ipvs0; ip route add local 10.99.0.2 dev lo table local proto 117; ip route add 10.98.0.1 dev lo proto 117")
	_, have, err := n.ReadDevice(context.Background())
	n.must(err)
	want := map[netip.Addr]kernel.Binding{netip.MustParseAddr("10.96.0.1"): kernel.Routed, netip.MustParseAddr("10.96.0.2"): kernel.OnDevice}
	if !maps.Equal(want, have) {
		t.Errorf("bound addresses: %v, want %v", have, want)
	}
}

// TestManyAddresses logs how long it takes to add, read and remove addresses and routes. KUBE_IPVS_MANY sets their number.
func TestManyAddresses(t *testing.T) {
	count := 1000
	if s := os.Getenv("KUBE_IPVS_MANY"); s != "" {
		if _, err := fmt.Sscan(s, &count); err != nil {
			t.Fatal(err)
		}
	}
	for _, kind := range []struct {
		name    string
		binding kernel.Binding
		family  string
	}{
		{"IPv4 routes", kernel.Routed, "10.%d.%d.%d"},
		{"IPv6 addresses", kernel.OnDevice, "fd00::%d:%d:%d"},
		{"IPv4 addresses", kernel.OnDevice, "10.%d.%d.%d"},
	} {
		t.Run(kind.name, func(t *testing.T) {
			n := newNodeWithDevice(t)
			objects := make([]kernel.Object, count)
			for i := range objects {
				text := fmt.Sprintf(kind.family, 96+i/62500, i/250%250, i%250+1)
				objects[i] = kernel.BoundAddress{Addr: netip.MustParseAddr(text), Binding: kind.binding}
			}
			timed := func(what string, work func()) {
				start := time.Now()
				work()
				t.Logf("%d %s, %s: %s", count, kind.name, what, time.Since(start).Round(time.Millisecond))
			}
			timed("create", func() { n.must(n.apply(kernel.Create, objects...)) })
			timed("read", func() {
				_, addrs, err := n.ReadDevice(context.Background())
				n.must(err)
				if len(addrs) != count {
					t.Errorf("%d addresses are bound", len(addrs))
				}
			})
			timed("delete", func() { n.must(n.apply(kernel.Delete, objects...)) })
			n.want(true)
		})
	}
}
