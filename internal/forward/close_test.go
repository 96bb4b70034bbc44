package forward

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/freeport"
)

// TestCloseWaitsForReplies: while Close waits, idle connections end, and a client that has sent its whole request still
// receives the reply.
func TestCloseWaitsForReplies(t *testing.T) {
	f, at := open(t, limits), freePort(t, TCP)
	f.quiet = 20 * time.Millisecond
	idle := make(chan struct{}) // closed when the idle connection has ended
	slow := freeport.Serve(t, "127.0.0.1:0", func(c *net.TCPConn) {
		_, _ = io.WriteString(c, "slow\n")
		_, _ = io.Copy(io.Discard, c) // the whole request
		<-idle
		_, _ = io.WriteString(c, "reply\n")
	})
	setTarget(t, f, at, To(slow))
	waiting, asking := mustDial(t, at), mustDial(t, at)
	if err := asking.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	closed := make(chan struct{})
	go func() { f.Close(time.Hour); close(closed) }()
	if _, err := waiting.in.ReadByte(); err == nil {
		t.Error("the idle connection is still open")
	}
	close(idle)
	if reply, err := asking.in.ReadString('\n'); err != nil || reply != "reply\n" {
		t.Errorf("got %q, %v", reply, err)
	}
	_ = asking.Close()
	<-closed
}

// TestSilentClientMayEndItsRequest: a client that was silent before it ended its request still waits for the reply.
func TestSilentClientMayEndItsRequest(t *testing.T) {
	near, far := pair(t)
	s := &stream{client: newSource(near), server: newSource(far), silent: map[*source]bool{}}
	if s.silence(s.client, true) {
		t.Error("ends while only the client is silent")
	}
	s.ended(s.client)
	if s.silence(s.server, true) {
		t.Error("ends while the reply may still come")
	}
}

// pair returns the ends of a connection.
func pair(t *testing.T) (near, far *net.TCPConn) {
	t.Helper()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	near, err = net.DialTCP("tcp", nil, l.Addr().(*net.TCPAddr))
	if err != nil {
		t.Fatal(err)
	}
	far, err = l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = near.Close(), far.Close() })
	return near, far
}
