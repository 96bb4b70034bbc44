package sockets

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/forward"
	"github.com/kube-ipvs/kube-ipvs/internal/freeport"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

var admission = kernel.Admission{
	Closed: []string{"NO-LOCAL", "REFUSED"}, InsideOnly: []string{"INSIDE-ONLY"}, Pods: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
	Firewalled: []string{"FIREWALLED"}, Allowed: []string{"ALLOWED"},
}

type world struct {
	*testing.T
	*table
	key kernel.ServerKey
}

func start(t *testing.T) *world {
	f := forward.New(forward.Limits{Connections: 10, Flows: 10, Connect: time.Second, FlowIdle: time.Minute})
	t.Cleanup(func() { f.Close(0) })
	w := &world{t, newTable(f, admission), kernel.ServerKey{
		Addr: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.9"), freeport.Get(t)), Protocol: inet.TCP,
	}}
	for _, name := range []string{"NO-LOCAL", "REFUSED", "INSIDE-ONLY", "FIREWALLED", "ALLOWED"} {
		w.do(kernel.Create, kernel.Set{Name: name, Family: inet.IPv4})
	}
	return w
}

func (w *world) try(verb kernel.Verb, objects ...kernel.Object) error {
	var ops []kernel.Op
	for _, o := range objects {
		ops = append(ops, kernel.Op{Verb: verb, Object: o})
	}
	return errors.Join(w.Apply(context.Background(), ops)...)
}

func (w *world) do(verb kernel.Verb, objects ...kernel.Object) {
	w.Helper()
	if err := w.try(verb, objects...); err != nil {
		w.Fatal(err)
	}
}

func (w *world) server() kernel.Server {
	return kernel.Server{Key: w.key, Scheduler: "rr", MaskBits: 32}
}

// endpoint returns a destination that sends its name to each client.
func (w *world) endpoint(name string) kernel.ServerDestination {
	return w.destination(func(c *net.TCPConn) { _, _ = io.WriteString(c, name) })
}

func (w *world) destination(each func(*net.TCPConn)) kernel.ServerDestination {
	return kernel.ServerDestination{Server: w.key, Destination: kernel.Destination{Addr: freeport.Serve(w, "127.0.0.1:0", each), Weight: 1}}
}

func (w *world) in(set string) kernel.Member {
	return kernel.Member{Set: set, Element: kernel.Element{Addr: w.key.Addr.Addr(), Protocol: inet.TCP, Port: w.key.Addr.Port()}}
}

func (w *world) allow(clients string) kernel.Member {
	m, r := w.in("ALLOWED"), netip.MustParsePrefix(clients)
	m.Element.Addr2, m.Element.Bits2 = r.Addr(), uint8(r.Bits())
	return m
}

// answers reports what a client at 127.0.0.1 receives; empty if its connection is refused or reset.
func (w *world) answers() string {
	c, err := net.DialTimeout("tcp", w.key.Addr.String(), 10*time.Second)
	if err != nil {
		return ""
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	answer, _ := io.ReadAll(c)
	return string(answer)
}

func (w *world) expect(answer, why string) {
	w.Helper()
	if got := w.answers(); got != answer {
		w.Errorf("%s: received %q, want %q", why, got, answer)
	}
}

func TestPortsOpenWithTheirFirstEndpoint(t *testing.T) {
	w := start(t)
	w.do(kernel.Create, w.server())
	w.expect("", "no endpoint")
	a := w.endpoint("a")
	w.do(kernel.Create, a)
	w.expect("a", "one endpoint")
	a.Weight = 0
	w.do(kernel.Update, a)
	w.expect("", "draining")
	if s := w.Lookup([]kernel.ServerKey{w.key})[w.key]; len(s.Destinations) != 1 || s.Destinations[0].Weight != 0 {
		t.Errorf("read %+v", s)
	}
	w.do(kernel.Delete, a, w.server())
	if found := w.Lookup([]kernel.ServerKey{w.key}); len(found) != 0 {
		t.Errorf("read %v after the deletion", found)
	}
}

// TestFlowsDrain: a client's datagrams stay with an endpoint whose weight is 0, even if no other endpoint remains, and new clients get no answer.
func TestFlowsDrain(t *testing.T) {
	w := start(t)
	w.key.Protocol = inet.UDP
	socket, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0")))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = socket.Close() }()
	go func() {
		for data := make([]byte, 100); ; {
			n, from, err := socket.ReadFromUDPAddrPort(data)
			if err != nil {
				return
			}
			_, _ = socket.WriteToUDPAddrPort(data[:n], from)
		}
	}()
	d := kernel.ServerDestination{Server: w.key, Destination: kernel.Destination{Addr: socket.LocalAddr().(*net.UDPAddr).AddrPort(), Weight: 1}}
	w.do(kernel.Create, w.server(), d)
	dial := func() net.Conn {
		c, err := net.Dial("udp", w.key.Addr.String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	asks := func(c net.Conn, wait time.Duration) bool {
		_, _ = io.WriteString(c, "hello")
		_ = c.SetReadDeadline(time.Now().Add(wait))
		n, err := c.Read(make([]byte, 100))
		return err == nil && n > 0
	}
	old := dial()
	if !asks(old, 10*time.Second) {
		t.Fatal("no answer")
	}
	d.Weight = 0
	w.do(kernel.Update, d)
	if !asks(old, 10*time.Second) {
		t.Error("the client lost its endpoint")
	}
	if asks(dial(), 100*time.Millisecond) {
		t.Error("a new client got an answer")
	}
	w.do(kernel.Delete, d)
	if asks(old, 100*time.Millisecond) {
		t.Error("an answer after the endpoint was removed")
	}
}

// TestSetsClosePorts: guards close a port to the clients to which rules would close it on the other data planes.
func TestSetsClosePorts(t *testing.T) {
	w := start(t)
	w.do(kernel.Create, w.server(), w.endpoint("a"))
	for _, set := range []string{"NO-LOCAL", "REFUSED", "INSIDE-ONLY", "FIREWALLED"} {
		w.do(kernel.Create, w.in(set))
		w.expect("", set) // 127.0.0.1 is neither inside nor allowed
		w.do(kernel.Delete, w.in(set))
		w.expect("a", "without "+set)
	}
	w.do(kernel.Create, w.allow("192.0.2.0/24"), w.in("FIREWALLED"))
	w.expect("", "outside the ranges")
	w.do(kernel.Create, w.allow("127.0.0.0/8"))
	w.expect("a", "inside the ranges")
	w.do(kernel.Create, w.in("INSIDE-ONLY"))
	w.expect("", "inside the ranges, but outside the cluster")
}

// TestNodeIsInside: the node's own addresses are inside the cluster, also after they change. An empty list of clients
// admits none.
func TestNodeIsInside(t *testing.T) {
	w := start(t)
	w.do(kernel.Create, w.server(), w.endpoint("a"), w.in("INSIDE-ONLY"))
	w.expect("", "unknown addresses")
	w.SetNode([]netip.Addr{netip.MustParseAddr("127.0.0.1")})
	w.expect("a", "from the node's address")
	w.SetNode([]netip.Addr{netip.MustParseAddr("192.0.2.1")})
	w.expect("", "from an address that the node has lost")
	w.SetPods([]netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")})
	w.expect("a", "from a range of pods")
	w.SetPods(nil)
	w.expect("", "no address is inside")
	w.SetNode(nil)
	w.expect("", "nobody is inside")
}

// TestPortsMoveBetweenNamespaces: a port is opened again in the other network namespace when the node gains or loses its
// address.
func TestPortsMoveBetweenNamespaces(t *testing.T) {
	w, opened := start(t), 0
	w.forwarder.OpenIn(func(_ netip.AddrPort, open func()) { opened++; open() })
	w.do(kernel.Create, w.server(), w.endpoint("a"))
	for i, addrs := range [][]netip.Addr{{w.key.Addr.Addr()}, {w.key.Addr.Addr(), netip.MustParseAddr("192.0.2.1")}, nil} {
		w.SetNode(addrs)
		if want := []int{2, 2, 3}[i]; opened != want {
			t.Errorf("with the addresses %v: opened %d times, want %d", addrs, opened, want)
		}
		w.expect("a", "after the node's addresses have changed")
	}
}

// TestBusyPort: a port that another process has fails alone, does not exist, and is served once it is free.
func TestBusyPort(t *testing.T) {
	w := start(t)
	busy, err := net.Listen("tcp", w.key.Addr.String())
	if err != nil {
		t.Fatal(err)
	}
	a, other := w.endpoint("a"), kernel.Server{Key: w.key}
	other.Key.Addr = netip.AddrPortFrom(w.key.Addr.Addr(), freeport.Get(t))
	errs := w.Apply(context.Background(), []kernel.Op{
		{Verb: kernel.Create, Object: w.server()}, {Verb: kernel.Create, Object: a}, {Verb: kernel.Create, Object: other},
	})
	if !errors.Is(errs[0], syscall.EADDRINUSE) || !errors.Is(errs[1], syscall.EADDRINUSE) || errs[2] != nil {
		t.Errorf("errors %v", errs)
	}
	found := w.Lookup([]kernel.ServerKey{w.key, other.Key})
	if _, exists := found[other.Key]; len(found) != 1 || !exists {
		t.Errorf("read %v", found)
	}
	if err := busy.Close(); err != nil {
		t.Fatal(err)
	}
	w.do(kernel.Create, w.server(), a)
	w.expect("a", "a free port")
}

// TestHeaders: an endpoint receives the header that its virtual server asks for, also after a change.
func TestHeaders(t *testing.T) {
	w := start(t)
	server := w.server()
	w.do(kernel.Create, server, w.destination(func(c *net.TCPConn) {
		var header [6]byte
		_, _ = io.ReadFull(c, header[:])
		_, _ = c.Write(header[:])
		_ = c.CloseWrite()
		_, _ = io.Copy(io.Discard, c) // closing with unread data would reset the connection
	}))
	for flag, begins := range map[uint32]string{kernel.FlagProxyV1: "PROXY ", kernel.FlagProxyV2: "\r\n\r\n\x00\r"} {
		server.Flags = flag
		w.do(kernel.Update, server)
		w.expect(begins, "a header")
	}
}
