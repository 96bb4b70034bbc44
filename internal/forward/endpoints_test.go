package forward

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"
)

// TestDeadEndpointsAreSkipped: clients of a Service with dead endpoints reach the live one.
func TestDeadEndpointsAreSkipped(t *testing.T) {
	f, at := open(t, limits), freePort(t, TCP)
	setTarget(t, f, at, Target{Endpoints: []Endpoint{{deadEndpoint(t), 1}, {deadEndpoint(t), 1}, {startEndpoint(t, "live"), 1}}})
	for range 6 {
		if name := mustDial(t, at).name; name != "live" {
			t.Errorf("%s answered", name)
		}
	}
	if failed := f.Counts().Failed; failed != 0 {
		t.Errorf("%d clients failed", failed)
	}
}

// TestFreePorts: the system chooses the ports, and listeners with different names do not share one.
func TestFreePorts(t *testing.T) {
	f, loopback := open(t, limits), netip.MustParseAddr("127.0.0.1")
	var ports []Listen
	for _, name := range []string{"a", "b", "a"} {
		at, err := f.Set(Listen{TCP, netip.AddrPortFrom(loopback, 0), name}, To(startEndpoint(t, name)))
		if err != nil {
			t.Fatal(err)
		}
		ports = append(ports, Listen{Protocol: TCP, At: at})
	}
	if ports[0] != ports[2] || ports[0] == ports[1] {
		t.Errorf("listening at %v", ports)
	}
	if name := mustDial(t, ports[1]).name; name != "b" {
		t.Errorf("%s answered, want b", name)
	}
}

// TestNewFlowsReplaceOldOnes: many more clients than there may be flows are answered, one after another, and a client
// that keeps sending keeps its flow. A resolver uses a new source port for each query.
func TestNewFlowsReplaceOldOnes(t *testing.T) {
	f, at := open(t, limits), freePort(t, UDP) // at most 10 flows, each for a minute
	sources := make(chan string, 1)
	socket, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	go func() {
		for buffer := make([]byte, maxDatagram); ; {
			n, from, err := socket.ReadFrom(buffer)
			if err != nil {
				return
			}
			sources <- from.String()
			_, _ = socket.WriteTo(buffer[:n], from)
		}
	}()
	set(t, f, at, socket.LocalAddr().(*net.UDPAddr).AddrPort())
	answered := func(c net.Conn) (source string) {
		_ = c.SetReadDeadline(time.Now().Add(patience))
		if _, err := io.WriteString(c, "query"); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, maxDatagram)); err != nil {
			t.Fatal("no answer: ", err)
		}
		return <-sources
	}
	steady := udpClient(t, at)
	first := answered(steady)
	for range 1500 {
		c := udpClient(t, at)
		answered(c)
		_ = c.Close()
		if source := answered(steady); source != first {
			t.Fatalf("the flow of a client that keeps sending was replaced: %s, then %s", first, source)
		}
	}
	if n := f.Counts(); n.Flows != int64(limits.Flows) || n.Replaced < 1000 { // two clients may get the same source port
		t.Errorf("%d flows, %d replaced", n.Flows, n.Replaced)
	}
}

// TestDeadUDPEndpoints: after an endpoint has refused a datagram, the client's next one goes to another endpoint, also
// with affinity.
func TestDeadUDPEndpoints(t *testing.T) {
	f, at := open(t, limits), freePort(t, UDP)
	dead := freePort(t, UDP).At
	setTarget(t, f, at, Target{Endpoints: []Endpoint{{dead, 1}, {startUDP(t, "live"), 1}}, Affinity: time.Hour})
	if got := ask(t, udpClient(t, at), "hello"); got != "live:hello" { // ask repeats the question
		t.Error(got)
	}
}

// TestOwnListenersAreNoEndpoints: a connection to a listener of the forwarder would lead back to the forwarder, without end.
func TestOwnListenersAreNoEndpoints(t *testing.T) {
	f := open(t, limits)
	for _, protocol := range []Protocol{TCP, UDP} {
		self, a, b := freePort(t, protocol), freePort(t, protocol), freePort(t, protocol)
		set(t, f, self, self.At)
		set(t, f, a, b.At)
		set(t, f, b, a.At)
		for _, at := range []Listen{self, a, b} {
			before := f.Counts().Failed
			if c, err := net.Dial(string(protocol), at.At.String()); err == nil { // TCP connections are reset, perhaps before Dial returns
				defer c.Close()
				_, _ = c.Write([]byte("hello"))
			}
			eventually(t, func() bool { return f.Counts().Failed > before })
		}
		if counts := f.Counts(); counts.Failed != 3 && protocol == TCP || counts.Flows > 0 || counts.Replaced > 0 || counts.Refused > 0 {
			t.Errorf("%s: %+v", protocol, counts)
		}
	}
	at, real := freePort(t, TCP), startEndpoint(t, "real")
	setTarget(t, f, at, Target{Endpoints: []Endpoint{{Addr: at.At, Weight: 1}, {Addr: real, Weight: 1}}})
	for range 4 {
		if name := mustDial(t, at).name; name != "real" {
			t.Errorf("%s answered", name)
		}
	}
}
