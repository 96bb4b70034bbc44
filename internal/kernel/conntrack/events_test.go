package conntrack

import (
	"context"
	"net"
	"os"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// TestWatch: the kernel reports a connection when it begins and when it ends, with what it has carried.
func TestWatch(t *testing.T) {
	b := open(t)
	command(t, "iptables -t nat -A OUTPUT -p udp -d 127.0.0.9 -j ACCEPT") // tracks connections in this namespace
	count(t)
	sub, err := subscribe()
	if err != nil {
		t.Fatal(err)
	}
	events, ended := make(chan kernel.FlowEvent, 100), make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		ended <- watch(ctx, sub, func(e kernel.FlowEvent) { events <- e }, func() { t.Error("events were lost") })
	}()
	server := echo(t, "127.0.0.1:0", "hello")
	conn, err := net.Dial("udp", server.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	flow := kernel.Flow{Key: kernel.ServerKey{Addr: server, Protocol: inet.UDP}, Client: conn.LocalAddr().(*net.UDPAddr).AddrPort(), Endpoint: server}
	ask(t, conn)
	if e := next(t, events); e.Ended || e.Flow != flow {
		t.Errorf("the beginning: %+v, want %+v", e, flow)
	}
	if n := b.end(t, func(f kernel.Flow) bool { return f == flow }); n != 1 {
		t.Fatalf("ended %d connections", n)
	}
	if e := next(t, events); !e.Ended || e.Flow != flow || !e.Answered || e.Packets != 2 || e.BytesIn == 0 || e.BytesOut == 0 || e.Lasted == 0 {
		t.Errorf("the end: %+v", e)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// count makes the kernel count packets, and record times.
func count(t *testing.T) {
	t.Helper()
	for _, name := range []string{"nf_conntrack_acct", "nf_conntrack_timestamp"} {
		if err := os.WriteFile("/proc/sys/net/netfilter/"+name, []byte("1"), 0); err != nil {
			t.Fatal(err)
		}
	}
}

func next(t *testing.T, events <-chan kernel.FlowEvent) (e kernel.FlowEvent) {
	t.Helper()
	select {
	case e = <-events:
	case <-time.After(time.Minute):
		t.Fatal("no event")
	}
	return e
}

// BenchmarkReadEvent measures the work for one event, without that of the kernel.
func BenchmarkReadEvent(b *testing.B) {
	payload := message(there, back)
	for b.Loop() {
		if _, is := readEvent(0, payload); !is {
			b.Fatal("not read")
		}
	}
}
