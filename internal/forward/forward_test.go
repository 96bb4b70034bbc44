package forward

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/freeport"
)

const patience = 10 * time.Second

// The endpoints are on loopback, so connecting to them is fast.
var limits = Limits{Connections: 100, Flows: 10, Connect: time.Second, FlowIdle: time.Minute}

// startEndpoint starts a server that sends its name to each client and echoes all data.
func startEndpoint(t *testing.T, name string) netip.AddrPort {
	t.Helper()
	return freeport.Serve(t, "127.0.0.1:0", func(c *net.TCPConn) {
		if _, err := io.WriteString(c, name+"\n"); err == nil {
			_, _ = io.Copy(c, c)
		}
	})
}

func deadEndpoint(t *testing.T) netip.AddrPort {
	t.Helper()
	return freePort(t, TCP).At
}

func freePort(t *testing.T, protocol Protocol) Listen {
	t.Helper()
	return Listen{Protocol: protocol, At: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), freeport.Get(t))}
}

func open(t *testing.T, l Limits) *Forwarder {
	t.Helper()
	f := New(l)
	t.Cleanup(func() { f.Close(0) })
	return f
}

func set(t *testing.T, f *Forwarder, at Listen, to netip.AddrPort) {
	t.Helper()
	setTarget(t, f, at, To(to))
}

func setTarget(t *testing.T, f *Forwarder, at Listen, to Target) {
	t.Helper()
	if _, err := f.Set(at, to); err != nil {
		t.Fatal(err)
	}
}

type client struct {
	*net.TCPConn
	in   *bufio.Reader
	name string
}

func dial(at Listen, within time.Duration) (*client, error) {
	conn, err := net.DialTimeout("tcp", at.At.String(), within)
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(within))
	c := &client{TCPConn: conn.(*net.TCPConn), in: bufio.NewReader(conn)}
	greeting, err := c.in.ReadString('\n')
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	c.name = strings.TrimSpace(greeting)
	return c, nil
}

func mustDial(t *testing.T, at Listen) *client {
	t.Helper()
	c, err := dial(at, patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func (c *client) echoes(t *testing.T) {
	t.Helper()
	if _, err := io.WriteString(c, "ping\n"); err != nil {
		t.Fatal(err)
	}
	if got, err := c.in.ReadString('\n'); err != nil || got != "ping\n" {
		t.Fatalf("got %q, %v", got, err)
	}
}

func TestTCPWithoutAnswerIsReset(t *testing.T) {
	f, at := open(t, limits), freePort(t, TCP)
	set(t, f, at, deadEndpoint(t))
	if c, err := dial(at, patience); err == nil {
		t.Errorf("endpoint %s answered, want a reset", c.name)
	}
	if failed := f.Counts().Failed; failed != 1 {
		t.Errorf("counted %d failures, want 1", failed)
	}
}

// TestHalfClose: a client that sends several megabytes and then closes its write side receives the whole reply.
func TestHalfClose(t *testing.T) {
	f, at := open(t, limits), freePort(t, TCP)
	set(t, f, at, startEndpoint(t, "a"))
	c := mustDial(t, at)
	sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
	go func() {
		_, _ = c.Write(sent)
		_ = c.CloseWrite()
	}()
	got, err := io.ReadAll(c.in)
	if err != nil || !bytes.Equal(got, sent) {
		t.Errorf("received %d of %d bytes: %v", len(got), len(sent), err)
	}
}

func TestChangesKeepConnections(t *testing.T) {
	f, at := open(t, limits), freePort(t, TCP)
	set(t, f, at, startEndpoint(t, "old"))
	c := mustDial(t, at)
	set(t, f, at, startEndpoint(t, "new"))
	c.echoes(t)
	if name := mustDial(t, at).name; name != "new" {
		t.Errorf("endpoint %s answered, want new", name)
	}
	if err := f.Remove(at); err != nil {
		t.Fatal(err)
	}
	c.echoes(t)
	if _, err := dial(at, patience); err == nil {
		t.Error("the port is still open")
	}
	if len(f.listeners) > 0 {
		t.Errorf("still listening at %v", f.listeners)
	}
}

func TestCloseEndsConnections(t *testing.T) {
	f, at := open(t, limits), freePort(t, TCP)
	set(t, f, at, startEndpoint(t, "a"))
	mustDial(t, at).echoes(t)
	f.Close(time.Hour) // the connection is open, but idle
	if _, err := f.Set(at, Target{}); err == nil {
		t.Error("a closed forwarder still listens")
	}

	f = open(t, limits)
	set(t, f, at, startEndpoint(t, "a"))
	open := mustDial(t, at)
	f.Close(0)
	if _, err := open.in.ReadByte(); err == nil {
		t.Error("the connection is still open")
	}
}

func TestConnectionLimit(t *testing.T) {
	l := limits
	l.Connections = 2
	f, at := open(t, l), freePort(t, TCP)
	set(t, f, at, startEndpoint(t, "a"))
	first, second := mustDial(t, at), mustDial(t, at)
	if _, err := dial(at, patience); err == nil {
		t.Error("a third connection was served, beyond the limit of 2")
	}
	if refused := f.Counts().Refused; refused != 1 {
		t.Errorf("counted %d refusals, want 1", refused)
	}
	first.echoes(t)
	_ = second.Close()
	eventually(t, func() bool { return f.Counts().Connections == 1 })
	mustDial(t, at)
}

// startUDP starts a server that echoes each datagram, prefixed with its name.
func startUDP(t *testing.T, name string) netip.AddrPort {
	t.Helper()
	socket, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	go func() {
		buffer := make([]byte, maxDatagram)
		for prefix := copy(buffer, name+":"); ; {
			n, from, err := socket.ReadFromUDPAddrPort(buffer[prefix:])
			if err != nil {
				return
			}
			_, _ = socket.WriteToUDPAddrPort(buffer[:prefix+n], from)
		}
	}()
	return socket.LocalAddr().(*net.UDPAddr).AddrPort()
}

func udpClient(t *testing.T, at Listen) net.Conn {
	t.Helper()
	c, err := net.Dial("udp", at.At.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

var questions atomic.Int64

// ask repeats a question until a reply to it arrives. Questions are numbered, because a late reply to an earlier
// question may also arrive.
func ask(t *testing.T, c net.Conn, question string) string {
	t.Helper()
	buffer, number := make([]byte, maxDatagram), fmt.Sprintf("#%d", questions.Add(1))
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		if _, err := io.WriteString(c, question+number); err != nil {
			continue
		}
		_ = c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		for {
			n, err := c.Read(buffer)
			if err != nil {
				break
			}
			if answer, ok := strings.CutSuffix(string(buffer[:n]), number); ok {
				return answer
			}
		}
	}
	t.Fatal("no answer")
	return ""
}

func TestUDP(t *testing.T) {
	f, at := open(t, limits), freePort(t, UDP)
	a, b := startUDP(t, "a"), startUDP(t, "b")
	set(t, f, at, a)
	one, two := udpClient(t, at), udpClient(t, at)
	large := strings.Repeat("x", 60_000)
	for range 3 {
		if got := ask(t, one, large); got != "a:"+large {
			t.Fatalf("got an answer of %d bytes", len(got))
		}
		if got := ask(t, two, "hello"); got != "a:hello" {
			t.Fatal(got)
		}
	}
	set(t, f, at, b)
	for _, c := range []net.Conn{one, two} {
		if got := ask(t, c, "hello"); got != "b:hello" {
			t.Error(got)
		}
	}
	if err := f.Remove(at); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(two, "hello"); err != nil {
		t.Fatal(err)
	}
	_ = two.SetReadDeadline(time.Now().Add(patience))
	if _, err := two.Read(make([]byte, maxDatagram)); !errors.Is(err, errClosedPort) {
		t.Errorf("reading from a flow to a closed port returns %v", err)
	}
	if n := f.Counts().Flows; n != 0 {
		t.Errorf("%d flows are left", n)
	}
}

func TestIdleFlowsEnd(t *testing.T) {
	l := limits
	l.FlowIdle = 20 * time.Millisecond
	f, at := open(t, l), freePort(t, UDP)
	set(t, f, at, startUDP(t, "a"))
	if got := ask(t, udpClient(t, at), "hello"); got != "a:hello" {
		t.Fatal(got)
	}
	eventually(t, func() bool { return f.Counts().Flows == 0 })
}

func TestPortInUse(t *testing.T) {
	f, taken := open(t, limits), startEndpoint(t, "other")
	at := Listen{Protocol: TCP, At: taken}
	if _, err := f.Set(at, Target{}); err == nil || !strings.Contains(err.Error(), at.String()) {
		t.Errorf("error %v does not name %s", err, at)
	}
	if _, err := f.Set(Listen{Protocol: "sctp", At: at.At}, Target{}); err == nil {
		t.Error("SCTP is accepted")
	}
}

func TestConcurrentChanges(t *testing.T) {
	f := New(limits)
	at := []Listen{freePort(t, TCP), freePort(t, TCP)}
	endpoints := []netip.AddrPort{startEndpoint(t, "a"), startEndpoint(t, "b"), deadEndpoint(t)}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	var workers sync.WaitGroup
	for i, l := range at {
		workers.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				if n%5 == 4 {
					_ = f.Remove(l)
				} else {
					_, _ = f.Set(l, To(endpoints[n%3]))
				}
			}
		})
		for range 3 {
			workers.Go(func() {
				for ctx.Err() == nil {
					if c, err := dial(at[i], 20*time.Millisecond); err == nil {
						_ = c.Close()
					}
				}
			})
		}
	}
	workers.Wait()
	f.Close(patience)
	if c := f.Counts(); c.Connections != 0 || c.Flows != 0 {
		t.Errorf("%d connections and %d flows are left", c.Connections, c.Flows)
	}
}

func eventually(t *testing.T, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("timeout")
		}
	}
}
