package forward

import (
	"testing"
	"time"
)

// TestKnownFlowsShareALock: a datagram of a known flow and its reply take only the lock of the flows, and share it with others.
func TestKnownFlowsShareALock(t *testing.T) {
	f, at := open(t, limits), freePort(t, UDP)
	set(t, f, at, startUDP(t, "a"))
	c := udpClient(t, at)
	ask(t, c, "hello")
	balancer := f.listeners[at].balance()
	f.mu.Lock()
	defer f.mu.Unlock()
	balancer.mu.Lock()
	defer balancer.mu.Unlock()
	f.flowsMu.RLock()
	defer f.flowsMu.RUnlock()
	ask(t, c, "again")
}

// TestUsedFlowsStay: when the socket's deadline passes, a flow stays if a datagram has passed since the deadline was set, and
// ends otherwise.
func TestUsedFlowsStay(t *testing.T) {
	f, at := open(t, limits), freePort(t, UDP) // flows last for a minute
	set(t, f, at, startUDP(t, "a"))
	c := udpClient(t, at)
	ask(t, c, "hello")
	key, fl := f.flows.oldest()
	pass := func() { _ = fl.socket.SetReadDeadline(time.Now().Add(-time.Second)) }
	pass()
	ask(t, c, "again") // the flow's goroutine forwards the reply
	if !f.flows.has(key, fl) {
		t.Error("a flow in use has ended")
	}
	fl.last.Store(int64(-2 * time.Minute))
	pass()
	eventually(t, func() bool { return f.Counts().Flows == 0 })
}
