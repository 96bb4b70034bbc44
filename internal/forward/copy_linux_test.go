package forward

import (
	"bufio"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/freeport"
)

// TestPiecesAllocateNothing: a piece of data on an open connection, and its reply, allocate no memory.
func TestPiecesAllocateNothing(t *testing.T) {
	f, at := open(t, limits), freePort(t, TCP)
	set(t, f, at, startEndpoint(t, "a"))
	c := mustDial(t, at)
	question, answer := []byte("again"), make([]byte, 5)
	if n := testing.AllocsPerRun(1000, func() {
		if _, err := c.Write(question); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c.TCPConn, answer); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("a piece of data and its reply allocate %g times", n)
	}
}

// TestCopyWithoutSplice: if the kernel cannot move data between the sockets, the agent copies and counts what has arrived.
func TestCopyWithoutSplice(t *testing.T) {
	client, near := pair(t)
	server, far := pair(t)
	from, to, counted := newSource(near), newSource(server), int64(0)
	from.splice = func(int, *int64, int, *int64, int, int) (int64, error) { return -1, unix.EINVAL }
	if _, err := client.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	n, err := from.copyNext(to, func(_ *source, bytes int64) { counted += bytes })
	_ = client.Close()
	if n, err := from.copyNext(to, nil); n != 0 || err != nil {
		t.Errorf("at the end: %d bytes, %v", n, err)
	}
	_ = server.Close()
	if got, _ := io.ReadAll(far); string(got) != "hello" || n != 5 || counted != 5 || err != nil {
		t.Errorf("copied %q: %d bytes, %d counted, %v", got, n, counted, err)
	}
	if n, err := newSource(near).copyNext(to, nil); n != 0 || err != nil {
		t.Errorf("at the end: %d bytes, %v", n, err)
	}
}

// TestIdleConnectionsHoldNoPipes: the agent holds two file descriptors for an idle connection, as the documentation says.
func TestIdleConnectionsHoldNoPipes(t *testing.T) {
	f, at, n := open(t, limits), freePort(t, TCP), 40
	set(t, f, at, freeport.Serve(t, "127.0.0.1:0", func(c *net.TCPConn) {
		for line, data := "a\n", bufio.NewReader(c); ; {
			if _, err := io.WriteString(c, line); err != nil {
				return
			}
			line, _ = data.ReadString('\n')
		}
	}))
	descriptors := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	mustDial(t, at).echoes(t)
	before := descriptors()
	for range n {
		mustDial(t, at).echoes(t)
	}
	// This process also has the client's and the endpoint's descriptor. A few pipes wait for their next use.
	if got := descriptors() - before; got > 4*n+n/2 {
		t.Errorf("%d connections hold %d descriptors", n, got)
	}
}

// TestClientsThatAreGone: a client may end its request and then disappear while the endpoint says nothing. The endpoint's connection ends, too.
func TestClientsThatAreGone(t *testing.T) {
	f, at := open(t, limits), freePort(t, TCP)
	ended := make(chan struct{})
	set(t, f, at, freeport.Serve(t, "127.0.0.1:0", func(c *net.TCPConn) {
		_, _ = io.WriteString(c, "hello\n")
		_, _ = io.Copy(io.Discard, c) // the whole request
		raw, _ := c.SyscallConn()
		_ = raw.Read(func(fd uintptr) bool { // until the connection is reset
			info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
			return err != nil || info.State == unix.BPF_TCP_CLOSE
		})
		close(ended)
	}))
	c := mustDial(t, at)
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	_ = c.SetLinger(0)
	_ = c.Close()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Error("the endpoint's connection is still open")
	}
}

// TestSumsVisitNoConnection: the sums are available while connections are locked, and cost as many allocations with 40
// connections and 10 flows as with one of each.
func TestSumsVisitNoConnection(t *testing.T) {
	f, tcp, udp := open(t, limits), freePort(t, TCP), freePort(t, UDP)
	set(t, f, tcp, startEndpoint(t, "a"))
	set(t, f, udp, startUDP(t, "a"))
	connect := func() {
		mustDial(t, tcp).echoes(t)
		ask(t, udpClient(t, udp), "hello")
	}
	connect()
	cost := func() float64 { return testing.AllocsPerRun(100, func() { f.Served() }) }
	before := cost()
	for range 39 {
		connect()
	}
	if after := cost(); after != before {
		t.Errorf("%g allocations with one connection, %g with 40", before, after)
	}
	for s := range f.streams {
		s.mu.Lock()
		defer s.mu.Unlock()
	}
	if s := f.Served(); s[tcp].Endpoints[0].Open != 40 || s[udp].Endpoints[0].Flows != limits.Flows || len(f.Connections(time.Now())) != 50 {
		t.Errorf("%+v", s)
	}
}

// TestOpenConnectionsOutliveTheirListener: after a port was closed and opened again, its older connections count as open, until they end.
func TestOpenConnectionsOutliveTheirListener(t *testing.T) {
	f, at, web := open(t, limits), freePort(t, TCP), startEndpoint(t, "web")
	set(t, f, at, web)
	client := mustDial(t, at)
	if err := f.Remove(at); err != nil {
		t.Fatal(err)
	}
	set(t, f, at, web)
	mustDial(t, at)
	if n := f.Served()[at].Endpoints[0].Open; n != 2 {
		t.Errorf("%d open connections, want 2", n)
	}
	_ = client.Close()
	eventually(t, func() bool { return f.Served()[at].Endpoints[0].Open == 1 })
}
