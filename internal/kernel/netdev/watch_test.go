package netdev

import (
	"context"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

type watching struct {
	*node
	disturbed, moved atomic.Int64
	marks            chan struct{} // receives a value for each event of the mark
	stop             func()
}

// mark is an address that Watch ignores. Events arrive in order, so once its events are handled, all earlier ones are, too.
const mark = "127.0.0.77"

// watch starts Watch in the node's namespace and waits until it listens.
func (n *node) watch() *watching {
	n.Helper()
	w := &watching{node: n, marks: make(chan struct{}, 2)}
	n.handled = w.find
	ctx, cancel := context.WithCancel(context.Background())
	listening, done := make(chan struct{}), make(chan struct{})
	var once sync.Once
	go func() {
		defer close(done)
		// Never unlocked: the thread ends with the goroutine.
		if err := enter(n.ns); err != nil {
			n.Errorf("enter namespace: %v", err)
			return
		}
		n.Watch(ctx, func() { w.disturbed.Add(1) }, func() {
			w.moved.Add(1)
			once.Do(func() { close(listening) })
		})
	}()
	w.stop = func() { cancel(); <-done }
	select {
	case <-listening:
	case <-done:
	case <-time.After(watchTimeout):
		n.Fatal("Watch did not start to listen")
	}
	return w
}

const watchTimeout = 30 * time.Second

func (w *watching) find(events []syscall.NetlinkMessage) {
	for _, e := range events {
		if e.Header.Type != unix.RTM_NEWADDR && e.Header.Type != unix.RTM_DELADDR {
			continue
		}
		if a, err := parseAddress(e.Data); err == nil && a.addr.String() == mark {
			w.marks <- struct{}{}
		}
	}
}

// handleAll waits until Watch has handled all events so far.
func (w *watching) handleAll() {
	w.Helper()
	w.run("ip addr add " + mark + "/8 dev lo && ip addr del " + mark + "/8 dev lo")
	for range 2 {
		select {
		case <-w.marks:
		case <-time.After(watchTimeout):
			w.Fatal("Watch did not handle the event that marks the end")
		}
	}
}

// takeDisturbed waits for all events so far, and returns the number of calls to disturbed since the last takeDisturbed.
func (w *watching) takeDisturbed() int64 {
	w.Helper()
	w.handleAll()
	return w.disturbed.Swap(0)
}

func (w *watching) takeMoved() int64 {
	w.Helper()
	w.handleAll()
	return w.moved.Swap(0)
}

// awaitMoved waits for a notification of changed node addresses. The kernel sends some events long after the command.
func (w *watching) awaitMoved(why string) {
	w.Helper()
	for start := time.Now(); w.moved.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Since(start) > watchTimeout {
			w.Fatalf("%s: no notification", why)
		}
	}
}

func TestWatch(t *testing.T) {
	labtest.NeedRoot(t)
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	n := newNode(t)
	w := n.watch()
	defer w.stop()
	if w.takeDisturbed() == 0 {
		t.Fatal("no notification at the start")
	}
	n.must(n.apply(kernel.Create, kernel.DummyDevice{}))
	n.want(true)
	w.takeDisturbed()
	w.takeMoved()

	n.must(n.apply(kernel.Create, bound("10.96.0.1"), bound("2001:db8::1"), bound("10.96.0.2")))
	if c := w.takeDisturbed(); c != 0 {
		t.Errorf("got %d notifications of the backend's own additions", c)
	}
	n.must(n.apply(kernel.Delete, bound("10.96.0.2")))
	if c := w.takeDisturbed(); c != 0 {
		t.Errorf("got %d notifications of the backend's own deletions", c)
	}
	if c := w.takeMoved(); c != 0 {
		t.Errorf("addresses on kube-ipvs0 caused %d notifications about node addresses", c)
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
		if w.takeDisturbed() == 0 {
			t.Errorf("no notification of %q", command)
		}
		_, _, err := n.ReadDevice(context.Background())
		n.must(err)
	}
	n.run("ip link add veth0 type veth peer name veth1; ip addr add 10.96.0.1/32 dev veth0; ip link del veth0")
	if c := w.takeDisturbed(); c != 0 {
		t.Errorf("got %d notifications of other devices", c)
	}
}

func TestNodeAddresses(t *testing.T) {
	n := newNode(t)
	w := n.watch()
	defer w.stop()
	n.must(n.apply(kernel.Create, kernel.DummyDevice{}, bound("10.96.0.1"), bound("2001:db8::1")))
	w.takeMoved()
	for _, step := range []struct {
		command string
		want    []string
	}{
		{"ip link add eth0 type dummy; ip addr add 192.0.2.9/24 dev eth0", []string{"192.0.2.9"}},
		{"ip addr add 192.0.2.5/24 dev eth0 valid_lft 600 preferred_lft 0", []string{"192.0.2.5", "192.0.2.9"}},
		{"ip addr add 2001:db8:1::1/64 dev eth0 nodad", []string{"192.0.2.5", "192.0.2.9", "2001:db8:1::1"}},
		{"ip addr add 203.0.113.1 peer 203.0.113.2/32 dev eth0", []string{"192.0.2.5", "192.0.2.9", "203.0.113.1", "2001:db8:1::1"}},
		{"ip addr add 198.51.100.7/32 dev lo", []string{"192.0.2.5", "192.0.2.9", "198.51.100.7", "203.0.113.1", "2001:db8:1::1"}},
		{"ip addr add 192.0.2.9/32 dev lo; ip addr del 198.51.100.7/32 dev lo", []string{"192.0.2.5", "192.0.2.9", "203.0.113.1", "2001:db8:1::1"}},
		{"ip link del eth0", []string{"192.0.2.9"}},
		{"ip link set kube-ipvs0 name old", []string{"192.0.2.9"}},
	} {
		w.takeMoved()
		n.run(step.command)
		n.wantNode(step.want...)
		w.awaitMoved(step.command)
	}
	// Without the mark, only a backend that has seen the device under its original name recognizes it.
	n.run("ip link set old alias ''")
	n.wantNode("192.0.2.9")
	n.freshly().wantNode("10.96.0.1", "192.0.2.9", "2001:db8::1")
	w.takeMoved()
	n.run("ip addr add 127.0.0.9/8 dev lo; ip addr add 169.254.0.1/16 dev lo; ip link add eth1 type dummy; ip link set eth1 up")
	if c := w.takeMoved(); c != 0 {
		t.Errorf("got %d notifications of addresses that are not the node's", c)
	}
}

func (n *node) wantNode(want ...string) {
	n.Helper()
	addrs, err := n.NodeAddresses(context.Background())
	n.must(err)
	var got []string
	for _, a := range addrs {
		got = append(got, a.String())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		n.Errorf("node addresses: -want +got\n%s", diff)
	}
}

func TestTentativeAddress(t *testing.T) {
	n := newNode(t)
	w := n.watch()
	defer w.stop()
	// Duplicate detection requires an interface that is up and uses ARP, such as a veth.
	n.run("ip link add eth0 type veth peer name eth1; sysctl -qw net.ipv6.conf.eth0.dad_transmits=3; ip link set eth0 up; ip link set eth1 up")
	n.run("ip addr add 2001:db8:1::1/64 dev eth0")
	n.wantNode()
	for {
		w.awaitMoved("the address is no longer tentative")
		w.moved.Store(0)
		addrs, err := n.NodeAddresses(t.Context())
		n.must(err)
		if len(addrs) > 0 {
			break
		}
	}
	n.wantNode("2001:db8:1::1")
	n.run("ip addr change 2001:db8:1::1/64 dev eth0 preferred_lft 0 valid_lft 600")
	n.wantNode("2001:db8:1::1")
}
