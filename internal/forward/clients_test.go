package forward

import (
	"errors"
	"io"
	"net/netip"
	"os"
	"testing"
	"time"
)

var (
	loopbackRange = netip.MustParsePrefix("127.0.0.0/8")
	otherRange    = netip.MustParsePrefix("192.0.2.0/24")
)

// TestClientsOutsideTheRanges: a TCP client in none of the ranges is reset, and takes no place from other clients. Open
// connections stay.
func TestClientsOutsideTheRanges(t *testing.T) {
	narrow := limits
	narrow.Connections = 1
	f, at, to := open(t, narrow), freePort(t, TCP), To(startEndpoint(t, "a"))
	to.Clients = []netip.Prefix{otherRange, loopbackRange}
	setTarget(t, f, at, to)
	c := mustDial(t, at)
	for _, clients := range [][]netip.Prefix{{otherRange}, {}} {
		to.Clients = clients
		setTarget(t, f, at, to)
		if c, err := dial(at, patience); err == nil {
			t.Errorf("clients %v: endpoint %s answered, want a reset", clients, c.name)
		}
	}
	c.echoes(t)
	if n := f.Counts(); n.Connections != 1 || n.Refused != 0 || n.Failed != 0 {
		t.Errorf("counts %+v, want one connection", n)
	}
}

// TestDatagramsOutsideTheRanges: when the ranges change, the flows of clients outside them end, and later datagrams of
// these clients are ignored.
func TestDatagramsOutsideTheRanges(t *testing.T) {
	f, at, to := open(t, limits), freePort(t, UDP), To(startUDP(t, "a"))
	to.Clients = []netip.Prefix{loopbackRange}
	setTarget(t, f, at, to)
	c := udpClient(t, at)
	ask(t, c, "hello")
	to.Clients = []netip.Prefix{otherRange}
	setTarget(t, f, at, to)
	if n := f.Counts().Flows; n != 0 {
		t.Errorf("%d flows, want none", n)
	}
	if _, err := io.WriteString(c, "again"); err != nil {
		t.Fatal(err)
	}
	to.Clients = nil
	later := freePort(t, UDP) // served by another listener: its answer shows that time has passed for the first one, too
	setTarget(t, f, later, to)
	ask(t, udpClient(t, later), "hello")
	_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	buffer := make([]byte, maxDatagram)
	for {
		n, err := c.Read(buffer)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := string(buffer[:n]); got == "a:again" {
			t.Fatal("a datagram of a client outside the ranges was answered")
		}
	}
}
