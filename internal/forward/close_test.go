package forward

import (
	"io"
	"net"
	"testing"
	"time"
)

// TestCloseWaitsForReplies: while Close waits, idle connections end, and a client that has sent its whole request still
// receives the reply.
func TestCloseWaitsForReplies(t *testing.T) {
	f, at := open(t, limits), freePort(t, TCP)
	f.quiet = 20 * time.Millisecond
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	idle := make(chan struct{}) // closed when the idle connection has ended
	go func() {
		for {
			c, err := socket.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.WriteString(c, "slow\n")
				_, _ = io.Copy(io.Discard, c) // the whole request
				<-idle
				_, _ = io.WriteString(c, "reply\n")
				_ = c.Close()
			}()
		}
	}()
	setTarget(t, f, at, To(socket.Addr().(*net.TCPAddr).AddrPort()))
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
