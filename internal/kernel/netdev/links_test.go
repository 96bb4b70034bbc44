package netdev

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

func TestParseNeighbor(t *testing.T) {
	b := []byte{unix.AF_INET, 0, 0, 0, 2, 0, 0, 0, unix.NUD_PERMANENT, 0, unix.NTF_EXT_LEARNED, 0}
	b = nlbatch.AppendAttr(b, unix.NDA_DST, []byte{192, 0, 2, 1})
	b = nlbatch.AppendAttr(b, unix.NDA_LLADDR, []byte{2, 0, 0, 0, 0, 0x99})
	want := kernel.Neighbor{Addr: netip.MustParseAddr("192.0.2.1"), Interface: 2, MAC: "02:00:00:00:00:99", State: "PERMANENT", Learned: true}
	if got, err := parseNeighbor(b); err != nil || got != want {
		t.Errorf("got %+v and error %v, want %+v", got, err, want)
	}
}

func TestParseQueue(t *testing.T) {
	queue := func(kind string, options []byte) []byte {
		b := append(make([]byte, 4), 3, 0, 0, 0)
		b = nlbatch.AppendString(append(b, make([]byte, 12)...), unix.TCA_KIND, kind)
		b = nlbatch.AppendAttr(b, unix.TCA_OPTIONS, options)
		return nlbatch.AppendNest(b, unix.TCA_STATS2, func(b []byte) []byte {
			return nlbatch.AppendAttr(b, statsQueue, []byte{0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0})
		})
	}
	number := func(all ...uint32) (b []byte) {
		for _, n := range all {
			b = binary.NativeEndian.AppendUint32(b, n)
		}
		return b
	}
	for _, c := range []struct {
		kind    string
		options []byte
		want    kernel.Queue
	}{
		{"pfifo", number(0), kernel.Queue{Full: true}},
		{"pfifo", number(1000), kernel.Queue{}},
		{"fq_codel", nlbatch.AppendUint32(nil, 2, 0), kernel.Queue{Full: true}},
		{"fq_codel", nlbatch.AppendUint32(nil, 2, 10240), kernel.Queue{}},
		{"netem", number(1_000_000_000/64, 1000, 1<<31, 0, 0, 0), kernel.Queue{Delay: time.Second, Loss: 50}},
		{"mq", nil, kernel.Queue{}},
	} {
		c.want.Kind, c.want.Interface, c.want.Drops = c.kind, 3, 7
		if got, err := parseQueue(queue(c.kind, c.options)); err != nil || got != c.want {
			t.Errorf("got %+v and error %v, want %+v", got, err, c.want)
		}
	}
}

func TestParseListedRoute(t *testing.T) {
	route := func(prefix, table, typ byte) []byte {
		b := []byte{unix.AF_INET, prefix, 0, 0, table, 0, 0, typ, 0, 0, 0, 0}
		b = nlbatch.AppendAttr(b, unix.RTA_DST, []byte{192, 0, 2, 1})
		return nlbatch.AppendUint32(b, unix.RTA_OIF, 3)
	}
	addr := netip.MustParseAddr("192.0.2.1")
	for _, c := range []struct {
		message []byte
		want    listedRoute
		host    bool
	}{
		{route(32, unix.RT_TABLE_LOCAL, unix.RTN_LOCAL), listedRoute{addr, 32, unix.RT_TABLE_LOCAL, true, false, 0, 3}, true},
		{route(32, unix.RT_TABLE_MAIN, unix.RTN_UNICAST), listedRoute{addr, 32, unix.RT_TABLE_MAIN, false, true, 0, 3}, true},
		{route(24, unix.RT_TABLE_MAIN, unix.RTN_UNICAST), listedRoute{addr, 24, unix.RT_TABLE_MAIN, false, true, 0, 3}, false},
		{route(32, unix.RT_TABLE_LOCAL, unix.RTN_BROADCAST), listedRoute{addr, 32, unix.RT_TABLE_LOCAL, false, false, 0, 3}, true},
		{nlbatch.AppendUint32(route(32, 0, unix.RTN_UNICAST), unix.RTA_TABLE, 1000), listedRoute{addr, 32, 1000, false, true, 0, 3}, true},
	} {
		if got, err := parseListedRoute(c.message); err != nil || got != c.want || got.toHost() != c.host {
			t.Errorf("got %+v and error %v, want %+v", got, err, c.want)
		}
	}
}

func FuzzLinks(f *testing.F) {
	f.Add([]byte{})
	f.Add(nlbatch.AppendString(make([]byte, queueHeader), unix.TCA_KIND, "pfifo"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if n, err := parseNeighbor(b); err == nil && len(b) < neighborHeader {
			t.Errorf("%x was parsed as %+v", b, n)
		}
		if r, err := parseListedRoute(b); err == nil && len(b) < unix.SizeofRtMsg {
			t.Errorf("%x was parsed as %+v", b, r)
		}
		if q, err := parseQueue(b); err == nil && len(b) < queueHeader {
			t.Errorf("%x was parsed as %+v", b, q)
		}
	})
}
