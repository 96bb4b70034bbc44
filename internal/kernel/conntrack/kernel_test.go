package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

var protocols = []inet.Protocol{inet.UDP, inet.SCTP}

func open(t *testing.T) *Backend {
	t.Helper()
	labtest.NetNS(t)
	b, err := New()
	labtest.Opened(t, b, err)
	return b
}

func (b *Backend) end(t *testing.T, stale func(kernel.Flow) bool) int {
	t.Helper()
	ended, err := b.EndFlows(t.Context(), protocols, inet.Families, stale)
	if err != nil {
		t.Fatal(err)
	}
	return ended
}

func (b *Backend) flows(t *testing.T) []kernel.Flow {
	t.Helper()
	var all []kernel.Flow
	b.end(t, func(f kernel.Flow) bool { all = append(all, f); return false })
	return all
}

func echo(t *testing.T, addr, word string) netip.AddrPort {
	t.Helper()
	conn, err := net.ListenPacket("udp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	go func() {
		buf := make([]byte, 100)
		for {
			_, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo([]byte(word), from)
		}
	}()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort()
}

func ask(t *testing.T, conn net.Conn) string {
	t.Helper()
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte("who?")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 100)
	n, err := conn.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	return string(buf[:n])
}

// A client that never pauses stays with its first endpoint until the agent ends its flow.
func TestClientMovesOn(t *testing.T) {
	for _, tt := range []struct {
		inet.Family
		program, virtual, host string
		zone                   string // the raw table's rule for zones
	}{
		{inet.IPv4, "iptables", "127.0.0.2", "127.0.0.1", ""},
		{inet.IPv6, "ip6tables", "fd00::2", "fd00::1", ""},
		{inet.IPv4, "iptables", "127.0.0.2", "127.0.0.1", "--zone 5"},
		{inet.IPv4, "iptables", "127.0.0.2", "127.0.0.1", "--zone-orig 7"},
	} {
		t.Run(fmt.Sprint(tt.Family, tt.zone), func(t *testing.T) {
			b := open(t)
			labtest.Run(t, "ip -6 addr add fd00::1/128 dev lo nodad")
			labtest.Run(t, "ip -6 addr add fd00::2/128 dev lo nodad")
			first := echo(t, netip.AddrPortFrom(netip.MustParseAddr(tt.host), 0).String(), "first")
			second := echo(t, netip.AddrPortFrom(netip.MustParseAddr(tt.host), 0).String(), "second")
			send := func(to netip.AddrPort) {
				labtest.Run(t, tt.program+" -t nat -F OUTPUT")
				labtest.Run(t, tt.program+" -t nat -A OUTPUT -p udp -d "+tt.virtual+" --dport 53 -j DNAT --to-destination "+to.String())
			}
			if tt.zone != "" {
				labtest.Run(t, tt.program+" -t raw -A OUTPUT -p udp -j CT "+tt.zone)
				labtest.Run(t, tt.program+" -t raw -A PREROUTING -p udp -j CT "+tt.zone)
			}
			send(first)
			key := kernel.ServerKey{Addr: netip.AddrPortFrom(netip.MustParseAddr(tt.virtual), 53), Protocol: inet.UDP}
			conn, err := net.Dial("udp", key.Addr.String())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			bystander, err := net.Dial("udp", second.String())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = bystander.Close() }()
			ask(t, bystander)
			if got := ask(t, conn); got != "first" {
				t.Fatalf("the first answer is from %s", got)
			}
			send(second)
			if got := ask(t, conn); got != "first" {
				t.Fatalf("the flow ended early: the answer is from %s", got)
			}
			want := kernel.Flow{Key: key, Client: conn.LocalAddr().(*net.UDPAddr).AddrPort(), Endpoint: first}
			before := b.flows(t)
			if slices.Contains(before, want) != (tt.zone == "") {
				t.Fatalf("flows %+v; %+v is in the zone %q", before, want, tt.zone)
			}
			if tt.zone != "" {
				return
			}
			if ended := b.end(t, func(f kernel.Flow) bool { return f.Key == key && f.Endpoint != second }); ended != 1 {
				t.Errorf("%d flows ended, want 1", ended)
			}
			left := slices.DeleteFunc(before, func(f kernel.Flow) bool { return f == want })
			if diff := cmp.Diff(texts(left), texts(b.flows(t))); diff != "" {
				t.Errorf("flows left (-want +have):\n%s", diff)
			}
			if got := ask(t, conn); got != "second" {
				t.Errorf("the answer is from %s, want second", got)
			}
		})
	}
}

func texts(flows []kernel.Flow) []string {
	var all []string
	for _, f := range flows {
		all = append(all, fmt.Sprint(f))
	}
	slices.Sort(all)
	return all
}

func TestManyFlows(t *testing.T) {
	b := open(t)
	const n = 1500
	want := map[kernel.Flow]bool{}
	for i := range n {
		for _, p := range append(protocols, inet.TCP) {
			f := kernel.Flow{
				Key:      kernel.ServerKey{Addr: netip.MustParseAddrPort("10.96.0.1:53"), Protocol: p},
				Client:   netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), uint16(1000+i)),
				Endpoint: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 0, byte(i % 2)}), 53),
			}
			if err := (kerneltest.Commands{}).AddFlow(f); err != nil {
				t.Fatal(err)
			}
			want[f] = p != inet.TCP && i%2 == 0 // these TCP connections are answered
		}
	}
	stale := func(f kernel.Flow) bool { return f.Endpoint.Addr().As4()[3] == 0 }
	before := b.Stats()
	if ended := b.end(t, stale); ended != n {
		t.Errorf("%d flows ended, want %d", ended, n)
	}
	walks := uint64(len(protocols) * len(inet.Families))
	if sends := b.Stats().Sends - before.Sends; sends > walks+n/batch+uint64(len(protocols)) {
		t.Errorf("%d sends for %d deletions", sends, n)
	}
	for _, f := range b.flows(t) {
		if want[f] {
			t.Errorf("%+v remains", f)
		}
	}
	entries, err := netlink.ConntrackTableList(netlink.ConntrackTable, netlink.FAMILY_V4)
	if err != nil || len(entries) != 2*n {
		t.Errorf("%d flows remain, %v; want %d", len(entries), err, 2*n)
	}
	if ended := b.end(t, stale); ended != 0 {
		t.Errorf("%d flows ended twice", ended)
	}
}

func TestRecreatedEntryStays(t *testing.T) {
	b := open(t)
	f := kernel.Flow{
		Key:    kernel.ServerKey{Addr: netip.MustParseAddrPort("10.96.0.1:53"), Protocol: inet.UDP},
		Client: netip.MustParseAddrPort("192.0.2.1:1000"), Endpoint: netip.MustParseAddrPort("10.244.0.1:53"),
	}
	other := f
	other.Client = netip.MustParseAddrPort("192.0.2.2:1000")
	admin := kerneltest.Commands{}
	if err := admin.AddFlow(f); err != nil {
		t.Fatal(err)
	}
	seen := 0
	ended := b.end(t, func(kernel.Flow) bool {
		if seen++; seen > 1 {
			return false
		}
		// The new entry reuses the old entry's memory.
		flush := netlink.ConntrackTableFlush(netlink.ConntrackTable)
		if err := errors.Join(flush, admin.AddFlow(other), admin.AddFlow(f)); err != nil {
			t.Error(err)
		}
		return true
	})
	if left := b.flows(t); ended != 0 || len(left) != 2 {
		t.Errorf("%d ended, %+v remain; want the new entries to stay", ended, left)
	}
}

func tcpFlow(n int, unanswered bool) kernel.Flow {
	key := kernel.ServerKey{Addr: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: inet.TCP}
	return kernel.Flow{
		Key: key, Client: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, byte(n >> 8), byte(n)}), 4000), Endpoint: key.Addr,
		Unanswered: unanswered, OneWay: unanswered,
	}
}

// seenReply marks a connection as answered, which the library cannot do.
func seenReply(t *testing.T, f kernel.Flow) {
	t.Helper()
	labtest.Run(t, fmt.Sprintf("conntrack -U -p tcp -s %s -d %s --sport %d --dport %d --status SEEN_REPLY",
		f.Client.Addr(), f.Key.Addr.Addr(), f.Client.Port(), f.Key.Addr.Port()))
}

func TestWalkLeavesOutAnsweredConnections(t *testing.T) {
	b := open(t)
	want := 10
	if labtest.OnKernel("5.10") {
		want = 100 // kernels before 5.15 do not filter
	}
	for i := range 100 {
		f := tcpFlow(i, i%10 == 0)
		if err := (kerneltest.Commands{}).AddFlow(f); err != nil {
			t.Fatal(err)
		}
		if !f.Unanswered {
			seenReply(t, f)
		}
	}
	seen := 0
	err := b.table.Walk(t.Context(), request(cmdGet, inet.IPv4, wanted(inet.TCP)), func([]byte) error { seen++; return nil })
	if err != nil || seen != want {
		t.Errorf("the kernel sent %d entries, %v; want %d", seen, err, want)
	}
}

func TestAnswerDuringTheWalk(t *testing.T) {
	b := open(t)
	late, never := tcpFlow(1, true), tcpFlow(2, true)
	for _, f := range []kernel.Flow{late, never} {
		if err := (kerneltest.Commands{}).AddFlow(f); err != nil {
			t.Fatal(err)
		}
	}
	ended, err := b.EndFlows(t.Context(), []inet.Protocol{inet.TCP}, inet.Families, func(f kernel.Flow) bool {
		if f == late {
			seenReply(t, f)
		}
		return true
	})
	entries, listErr := netlink.ConntrackTableList(netlink.ConntrackTable, netlink.FAMILY_V4)
	if err := errors.Join(err, listErr); err != nil || ended != 1 || len(entries) != 1 {
		t.Errorf("%d ended, %d left, %v; want one of each", ended, len(entries), err)
	}
}

// The kernel creates these entries: one for an unanswered first packet, and one for an established connection.
func TestConnectionsOfTheKernel(t *testing.T) {
	b := open(t)
	labtest.Run(t, "ip link add nowhere type dummy")
	labtest.Run(t, "ip addr add 192.0.2.1/24 dev nowhere")
	labtest.Run(t, "ip link set nowhere up")
	labtest.Run(t, "iptables -A OUTPUT -m conntrack --ctstate NEW") // a rule that needs connection tracking
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if late, err := net.DialTimeout("tcp", "192.0.2.9:80", 100*time.Millisecond); err == nil {
		_ = late.Close()
		t.Fatal("the connection was answered")
	}
	var seen []kernel.Flow
	_, err = b.EndFlows(t.Context(), []inet.Protocol{inet.TCP}, inet.Families, func(f kernel.Flow) bool {
		seen = append(seen, f)
		return false
	})
	nowhere := netip.MustParseAddrPort("192.0.2.9:80")
	if err != nil || len(seen) != 1 || seen[0].Key.Addr != nowhere || seen[0].Endpoint != nowhere || !seen[0].Unanswered {
		t.Errorf("seen %+v, %v; want only the connection to %s", seen, err, nowhere)
	}
}

func TestCanceled(t *testing.T) {
	b := open(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.EndFlows(ctx, protocols, inet.Families, nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestWatch(t *testing.T) {
	b := open(t)
	labtest.Run(t, "iptables -A OUTPUT -m conntrack --ctstate NEW -j ACCEPT") // tracks connections in this namespace
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
	first := flow
	first.OneWay = true
	if e := next(t, events); e.Ended || e.Flow != first {
		t.Errorf("the first event is %+v, want the beginning of %+v", e, first)
	}
	if n := b.end(t, func(f kernel.Flow) bool { return f == flow }); n != 1 {
		t.Fatalf("EndFlows ended %d connections, want 1", n)
	}
	if e := next(t, events); !e.Ended || e.Flow != flow || !e.Answered || e.Packets != 2 || e.BytesIn == 0 || e.BytesOut == 0 || e.Lasted == 0 {
		t.Errorf("the last event is %+v", e)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// If the program does not read in time, the kernel drops events, and the program learns of it.
func TestWatchReportsLosses(t *testing.T) {
	open(t)
	labtest.Run(t, "iptables -A OUTPUT -m conntrack --ctstate NEW -j ACCEPT") // tracks connections in this namespace
	const opened = 1000
	sub, err := nlbatch.Subscribe(unix.NETLINK_NETFILTER, groupNew|groupDestroy, 64<<10, nil)
	if err != nil {
		t.Fatal(err)
	}
	for range opened {
		conn, err := net.Dial("udp", "127.0.0.1:9")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		conn.Close()
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	lost, more := false, false
	err = watch(ctx, sub, func(kernel.FlowEvent) {
		more = lost
		stop()
	}, func() { lost = true })
	if err != nil || !more {
		t.Errorf("losses were reported: %t; an event followed: %t; error %v", lost, more, err)
	}
}

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
