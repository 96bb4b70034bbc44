package loopback

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/forward"
	"github.com/kube-ipvs/kube-ipvs/internal/freeport"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

const patience = 10 * time.Second

var limits = forward.Limits{Connections: 100, Flows: 10, Connect: time.Second, FlowIdle: time.Minute}

var (
	web     = model.ServiceID{Namespace: "default", Name: "web"}
	other   = model.ServiceID{Namespace: "default", Name: "other"}
	address = netip.MustParseAddr("127.0.0.1")
)

type failures struct {
	mu   sync.Mutex
	last map[model.ServiceID]string
}

func (f *failures) failed(id model.ServiceID, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last[id] = fmt.Sprint(err)
}

func (f *failures) of(id model.ServiceID) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last[id]
}

func start(t *testing.T) (*Ports, *failures) {
	t.Helper()
	f := &failures{last: map[model.ServiceID]string{}}
	p := New(limits)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { p.Run(ctx, f.failed); close(ended) }()
	t.Cleanup(func() { cancel(); <-ended })
	return p, f
}

// frontend simulates the node port on an address of the node. It greets each connection with its name.
func frontend(t *testing.T, name string) netip.AddrPort {
	t.Helper()
	socket, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Skip("this platform has only one loopback address:", err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	go func() {
		for {
			c, err := socket.Accept()
			if err != nil {
				return
			}
			_, _ = fmt.Fprintln(c, name)
			_ = c.Close()
		}
	}()
	return netip.MustParseAddrPort(socket.Addr().String())
}

func reply(port uint16) string {
	c, err := net.DialTimeout("tcp", netip.AddrPortFrom(address, port).String(), patience)
	if err != nil {
		return "refused"
	}
	defer func() { _ = c.Close() }()
	line, _ := bufio.NewReader(c).ReadString('\n')
	return strings.TrimSpace(line)
}

func becomes(t *testing.T, want string, got func() string) {
	t.Helper()
	for deadline := time.Now().Add(patience); got() != want; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("got %q, want %q", got(), want)
		}
	}
}

func to(port uint16, target netip.AddrPort) []model.LoopbackPort {
	return []model.LoopbackPort{{Protocol: inet.TCP, Number: port, To: target}}
}

func TestPortsFollowServices(t *testing.T) {
	p, _ := start(t)
	port := freeport.Get(t)
	a, b := frontend(t, "a"), frontend(t, "b")
	p.Update([]netip.Addr{address}, map[model.ServiceID][]model.LoopbackPort{web: to(port, a)})
	becomes(t, "a", func() string { return reply(port) })

	// A later update changes the Service's frontend.
	p.Update([]netip.Addr{address}, map[model.ServiceID][]model.LoopbackPort{web: to(port, b)})
	becomes(t, "b", func() string { return reply(port) })

	// One update moves a port to another Service.
	p.Update([]netip.Addr{address}, map[model.ServiceID][]model.LoopbackPort{web: nil, other: to(port, a)})
	becomes(t, "a", func() string { return reply(port) })

	p.Update(nil, nil) // nodePortAddresses no longer contains loopback addresses
	becomes(t, "refused", func() string { return reply(port) })
	p.Update([]netip.Addr{address}, nil) // it contains one again
	becomes(t, "a", func() string { return reply(port) })
	p.Update([]netip.Addr{address}, map[model.ServiceID][]model.LoopbackPort{other: nil})
	becomes(t, "refused", func() string { return reply(port) })
}

// TestFamilies: a Service without IPv6 does not listen on ::1, and no SCTP port is opened.
func TestFamilies(t *testing.T) {
	p := New(limits)
	p.Update([]netip.Addr{address, netip.IPv6Loopback()}, map[model.ServiceID][]model.LoopbackPort{web: {
		{Protocol: inet.TCP, Number: 30080, To: netip.MustParseAddrPort("192.0.2.1:30080")},
		{Protocol: inet.UDP, Number: 30053, To: netip.MustParseAddrPort("[2001:db8::1]:30053")},
		{Protocol: inet.SCTP, Number: 30090, To: netip.MustParseAddrPort("192.0.2.1:30090")},
	}})
	wanted := p.wanted()
	for _, at := range []forward.Listen{
		{Protocol: forward.TCP, At: netip.MustParseAddrPort("127.0.0.1:30080")}, {Protocol: forward.UDP, At: netip.MustParseAddrPort("[::1]:30053")},
	} {
		if _, ok := wanted[at]; !ok {
			t.Errorf("%s is not among the wanted ports", at)
		}
	}
	if len(wanted) != 2 {
		t.Errorf("%d ports, want 2: %v", len(wanted), wanted)
	}
}

// TestTwoServicesWithOnePort: each time, the same Service gets the port.
func TestTwoServicesWithOnePort(t *testing.T) {
	for range 20 {
		p := New(limits)
		p.Update([]netip.Addr{address}, map[model.ServiceID][]model.LoopbackPort{
			web: to(30080, netip.MustParseAddrPort("192.0.2.1:80")), other: to(30080, netip.MustParseAddrPort("192.0.2.2:80")),
		})
		for at, port := range p.wanted() {
			if port.owner != other {
				t.Fatalf("%v has %s", port.owner, at)
			}
		}
	}
}

// TestFailures: if another process uses a port, Run reports a failure for the Service, and opens the port once it is
// free. Other Services are not affected.
func TestFailures(t *testing.T) {
	p, f := start(t)
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	taken, free := netip.MustParseAddrPort(socket.Addr().String()).Port(), freeport.Get(t)
	a := frontend(t, "a")
	p.Update([]netip.Addr{address}, map[model.ServiceID][]model.LoopbackPort{web: to(taken, a), other: to(free, a)})
	becomes(t, "a", func() string { return reply(free) })
	if got := f.of(web); !strings.Contains(got, netip.AddrPortFrom(address, taken).String()) {
		t.Errorf("the failure %q does not name the port", got)
	}
	if got := f.of(other); got != "" {
		t.Errorf("got failure %q for the other Service, want none", got)
	}
	_ = socket.Close()
	p.Update([]netip.Addr{address}, map[model.ServiceID][]model.LoopbackPort{other: nil}) // any update wakes Run before the retry
	becomes(t, "a", func() string { return reply(taken) })
	becomes(t, "<nil>", func() string { return f.of(web) })
}
