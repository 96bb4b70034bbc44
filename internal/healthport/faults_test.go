package healthport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/freeport"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

var faults = map[string]struct {
	// begin causes the fault. It returns the wanted port and a function that ends the fault.
	begin func(*testing.T, *node) (uint16, func())
	why   string
	// reachable are the addresses on which the port is open despite the fault.
	reachable []netip.Addr
}{
	"another program uses the port": {
		begin: func(t *testing.T, _ *node) (uint16, func()) {
			port, holder := taken(t, home4)
			return port, func() { _ = holder.Close() }
		},
		why:       "another program uses this port",
		reachable: []netip.Addr{home6},
	},
	"another Service uses the port": {
		begin: func(t *testing.T, n *node) (uint16, func()) {
			port, first := freeport.Get(t), model.ServiceID{Namespace: "a", Name: "first"}
			n.Update(map[model.ServiceID]Port{first: {port, 1}})
			n.untilCounted(2, 0)
			return port, func() { n.Update(map[model.ServiceID]Port{first: {}}) }
		},
		why: "Service a/first has the same healthCheckNodePort",
	},
	"a removed address": {
		begin: func(t *testing.T, n *node) (uint16, func()) {
			n.SetAddresses([]netip.Addr{netip.MustParseAddr("192.0.2.77"), home4, home6})
			return freeport.Get(t), func() { n.SetAddresses([]netip.Addr{home4, home6}) }
		},
		why:       "192.0.2.77",
		reachable: []netip.Addr{home4, home6},
	},
	"an address not yet ready": {
		begin: func(t *testing.T, n *node) (uint16, func()) {
			port := freeport.Get(t)
			ready := n.refuse(port, "tcp6", syscall.EADDRNOTAVAIL)
			return port, ready
		},
		why:       "cannot assign requested address",
		reachable: []netip.Addr{home4},
	},
	"no file descriptors": {
		begin: func(t *testing.T, n *node) (uint16, func()) {
			port := freeport.Get(t)
			return port, n.refuse(port, "tcp", syscall.EMFILE)
		},
		why: "too many open files",
	},
}

// TestFaults: during each fault, another Service keeps its port, and the failure of the affected Service is reported.
// Its port works as soon as the fault ends.
func TestFaults(t *testing.T) {
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			breakable := n.breakable()
			n.run()
			other := freeport.Get(t)
			n.Update(map[model.ServiceID]Port{dns: {other, 1}})
			n.untilCounted(1, 0)
			port, end := fault.begin(t, breakable)
			n.Update(map[model.ServiceID]Port{web: {port, 1}})
			n.untilReported("the failure", func() bool { return strings.Contains(n.failure(web), fault.why) && n.failing > 0 })
			for _, addr := range fault.reachable {
				if got := ask(t, "GET", url(addr, port)); got.Status != 200 {
					t.Errorf("%s responds %+v during the fault", addr, got)
				}
			}
			if got := ask(t, "GET", url(home4, other)); got.Status != 200 {
				t.Errorf("the port of the other Service responds %+v during the fault", got)
			}
			end()
			n.untilReported("the recovery", func() bool { return n.failures[web] == nil && n.failing == 0 })
			for _, addr := range []netip.Addr{home4, home6} {
				if got := ask(t, "GET", url(addr, port)); got.Status != 200 || !strings.Contains(got.Body, `"web"`) {
					t.Errorf("%s responds %+v after the fault", addr, got)
				}
			}
		})
	}
}

type refusal struct {
	address, network string
	err              error
}

func (n *node) breakable() *node {
	listen := n.listen
	n.refused = new(atomic.Pointer[refusal])
	n.listen = func(ctx context.Context, network, address string) (net.Listener, error) {
		r := n.refused.Load()
		if r != nil && strings.HasSuffix(address, r.address) && strings.HasPrefix(network, r.network) {
			return nil, &net.OpError{Op: "listen", Net: network, Err: r.err}
		}
		return listen(ctx, network, address)
	}
	return n
}

func (n *node) refuse(port uint16, network string, err error) func() {
	n.refused.Store(&refusal{fmt.Sprintf(":%d", port), network, err})
	return func() { n.refused.Store(nil) }
}

// TestListenRetriesBackOff: the retries become less frequent while a port is in use.
func TestListenRetriesBackOff(t *testing.T) {
	n := newNode(t)
	var tries atomic.Int32
	n.listen = func(context.Context, string, string) (net.Listener, error) {
		tries.Add(1)
		return nil, &net.OpError{Op: "listen", Err: syscall.EADDRINUSE}
	}
	n.run()
	n.Update(map[model.ServiceID]Port{web: {30999, 1}})
	n.until("tried several times", func() bool { return tries.Load() >= 8 })
	time.Sleep(100 * time.Millisecond)
	// The pauses are 5, 10, 20, 40... ms. At least 115 ms have passed; a fixed pause would have led to 40 or more
	// attempts.
	if got := tries.Load(); got > 30 {
		t.Errorf("got %d attempts to listen", got)
	}
}

func TestBrokenSocketIsReopened(t *testing.T) {
	n := newNode(t)
	listen, sockets := n.listen, make(chan net.Listener, 100)
	n.listen = func(ctx context.Context, network, address string) (net.Listener, error) {
		l, err := listen(ctx, network, address)
		if err == nil {
			sockets <- l
		}
		return l, err
	}
	n.run()
	port := freeport.Get(t)
	n.Update(map[model.ServiceID]Port{web: {port, 1}})
	n.untilCounted(1, 0)
	for range 2 {
		if err := (<-sockets).Close(); err != nil {
			t.Fatal(err)
		}
	}
	n.until("opened again", func() bool { return len(sockets) == 2 && open(home4, port) && open(home6, port) })
}

// TestFlapping: only the last update takes effect, and no port of an earlier update stays open.
func TestFlapping(t *testing.T) {
	n := newNode(t).run()
	a, b := freeport.Get(t), freeport.Get(t)
	for i := range 500 {
		port := Port{a, i}
		switch i % 3 {
		case 1:
			port.Number = b
		case 2:
			port.Number = 0
		}
		n.Update(map[model.ServiceID]Port{web: port, dns: {b, i}})
		n.Update(map[model.ServiceID]Port{dns: {}})
	}
	n.Update(map[model.ServiceID]Port{web: {b, 7}})
	n.until("settled", func() bool { return !open(home4, a) && open(home4, b) })
	n.untilCounted(1, 0)
	if got := ask(t, "GET", url(home4, b)); !strings.Contains(got.Body, `"localEndpoints": 7,`) {
		t.Errorf("%+v", got)
	}
}

// TestConnectionLimit: idle clients block neither responses to load balancers nor the closing of the port.
func TestConnectionLimit(t *testing.T) {
	n := newNode(t)
	n.limit = NewConnLimit(10)
	n.run()
	port := freeport.Get(t)
	n.Update(map[model.ServiceID]Port{web: {port, 1}})
	n.untilCounted(1, 0)
	var silent []net.Conn
	for range 30 {
		conn, err := net.Dial("tcp", netip.AddrPortFrom(home4, port).String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		silent = append(silent, conn)
	}
	if got := ask(t, "GET", url(home4, port)); got.Status != 200 {
		t.Errorf("the response at the connection limit is %+v", got)
	}
	for _, conn := range silent[:20] {
		_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
			t.Fatalf("an old silent connection was not closed: %v", err)
		}
	}
	n.limit.mu.Lock()
	if got := n.limit.order.Len(); got > 10 || got != len(n.limit.open) {
		t.Errorf("got %d connections, %d of them tracked", got, len(n.limit.open))
	}
	n.limit.mu.Unlock()

	n.Update(map[model.ServiceID]Port{web: {}})
	n.untilCounted(0, 0)
	_ = silent[29].SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := silent[29].Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a silent connection is still open after its port was closed: %v", err)
	}
}

// TestStoppingIsNotAFailure: an agent that stops while it opens ports reports no failures.
func TestStoppingIsNotAFailure(t *testing.T) {
	n := newNode(t)
	ctx, cancel := context.WithCancel(t.Context())
	n.listen = func(ctx context.Context, _, _ string) (net.Listener, error) {
		cancel()
		return nil, ctx.Err()
	}
	n.Update(map[model.ServiceID]Port{web: {30999, 1}})
	n.settle(ctx)
	if len(n.failures) != 0 || n.failing != 0 {
		t.Errorf("stopping is reported as a failure: %d failing, %v", n.failing, n.failures)
	}
}
