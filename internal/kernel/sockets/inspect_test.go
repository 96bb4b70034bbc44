package sockets

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// dial opens a connection, and sends something that the endpoint sends back.
func (w *world) dial() net.Conn {
	client, err := net.Dial("tcp", w.key.Addr.String())
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = client.Close() })
	_, err = io.WriteString(client, "hello")
	if _, failed := io.ReadFull(client, make([]byte, 5)); err != nil || failed != nil {
		w.Fatal(err, failed)
	}
	return client
}

// TestTraffic: the table shows open connections as IPVS does, also those through a port that has been closed.
func TestTraffic(t *testing.T) {
	w := start(t)
	endpoint, draining := w.destination(func(c *net.TCPConn) { _, _ = io.Copy(c, c) }), w.endpoint("draining")
	draining.Weight = 0
	w.do(kernel.Create, w.server(), endpoint, draining)
	client := w.dial()
	servers, connections := w.Traffic(), w.Connections(time.Now())
	if len(servers) != 1 || servers[0].Key.Addr != w.key.Addr || len(servers[0].Destinations) != 2 || servers[0].Stats.InBytes < 5 {
		t.Fatalf("virtual servers %+v", servers)
	}
	for _, d := range servers[0].Destinations {
		if want := map[bool]uint32{true: 1}[d.Addr == endpoint.Addr]; d.Active != want || d.Inactive != 0 || d.Stats.Connections != uint64(want) {
			t.Errorf("destination %+v, want %d connections", d, want)
		}
	}
	want := kernel.Connection{
		Protocol: "TCP", Client: client.LocalAddr().(*net.TCPAddr).AddrPort(), Virtual: w.key.Addr, Destination: endpoint.Addr, State: "ESTABLISHED",
	}
	if len(connections) != 1 || connections[0] != want {
		t.Errorf("connections %+v, want %+v", connections, want)
	}
	w.do(kernel.Create, w.in("REFUSED"))
	if servers, connections = w.Traffic(), w.Connections(time.Now()); len(servers) != 1 || len(servers[0].Destinations) != 2 || len(connections) != 1 {
		t.Errorf("after the port was closed: %+v and %+v", servers, connections)
	}
}
