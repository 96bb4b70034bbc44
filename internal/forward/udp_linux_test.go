package forward

import (
	"testing"
	"time"
)

// TestKnownFlowsAllocateNothing: neither a datagram of a known flow nor its reply allocates memory.
func TestKnownFlowsAllocateNothing(t *testing.T) {
	f, at := open(t, limits), freePort(t, UDP)
	set(t, f, at, startUDP(t, "a"))
	c := udpClient(t, at)
	ask(t, c, "hello")
	_ = c.SetReadDeadline(time.Now().Add(patience))
	question, answer := []byte("again"), make([]byte, maxDatagram)
	if n := testing.AllocsPerRun(1000, func() {
		if _, err := c.Write(question); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(answer); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("a datagram and its reply allocate %g times", n)
	}
}
