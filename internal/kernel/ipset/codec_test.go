package ipset

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"

	"net/netip"
)

func drawElement(t *rapid.T) kernel.Element {
	size := rapid.SampledFrom([]int{4, 16}).Draw(t, "bytes")
	draw := func(label string) netip.Addr {
		a, _ := netip.AddrFromSlice(rapid.SliceOfN(rapid.Byte(), size, size).Draw(t, label))
		return a
	}
	e := kernel.Element{Addr: draw("address")}
	kind := rapid.IntRange(1, 3).Draw(t, "fields")
	if kind > 1 {
		e.Protocol = rapid.SampledFrom([]inet.Protocol{inet.TCP, inet.UDP, inet.SCTP}).Draw(t, "protocol")
		e.Port = rapid.Uint16().Draw(t, "port")
	}
	if kind > 2 {
		e.Addr2 = draw("second address")
	}
	return e
}

func TestElementRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawElement(t)
		listing := nlbatch.AppendNest(make([]byte, nfgenHeaderLen), nl.IPSET_ATTR_ADT, func(b []byte) []byte {
			return appendElement(b, want, 1)
		})
		got := map[kernel.Element]struct{}{}
		if err := decodeMembers(listing, got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(map[kernel.Element]struct{}{want: {}}, got, compareAddrs); diff != "" {
			t.Error(diff)
		}
	})
}

func TestCheckElement(t *testing.T) {
	v4, mapped := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("::ffff:10.0.0.1")
	for _, tt := range []struct {
		name string
		e    kernel.Element
		ok   bool
	}{
		{"address", kernel.Element{Addr: v4}, true},
		{"port 0", kernel.Element{Addr: v4, Protocol: inet.UDP}, true},
		{"two addresses", kernel.Element{Addr: v4, Protocol: inet.UDP, Port: 1, Addr2: v4}, true},
		{"nothing", kernel.Element{}, false},
		{"port without protocol", kernel.Element{Addr: v4, Port: 80}, false},
		{"mapped", kernel.Element{Addr: mapped}, false},
		{"second mapped", kernel.Element{Addr: v4, Protocol: inet.UDP, Addr2: mapped}, false},
	} {
		if err := checkElement(tt.e); (err == nil) != tt.ok {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

func TestSegment(t *testing.T) {
	create := func(s string) kernel.Op { return kernel.Op{Verb: kernel.Create, Object: kernel.Member{Set: s}} }
	remove := func(s string) kernel.Op { return kernel.Op{Verb: kernel.Delete, Object: kernel.Member{Set: s}} }
	other := kernel.Op{Verb: kernel.Create, Object: kernel.Set{}}
	for _, tt := range []struct {
		name string
		ops  []kernel.Op
		want int
	}{
		{"one set", []kernel.Op{create("a"), create("a")}, 2},
		{"verbs on several sets", []kernel.Op{create("a"), remove("b"), create("a"), remove("b")}, 4},
		{"verbs on one set", []kernel.Op{create("a"), create("b"), remove("a")}, 2},
		{"until a set", []kernel.Op{create("a"), other, create("a")}, 1},
		{"no member", []kernel.Op{other}, 0},
	} {
		if got := segment(tt.ops, 0); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, got, tt.want)
		}
	}
}

func TestRefusedLine(t *testing.T) {
	echo := func(line uint32) error {
		r := request(cmdAdd, nlbatch.AppendUint32(nil, nl.IPSET_ATTR_LINENO, line))
		return &nlbatch.Error{Errno: errHashFull, Request: r.Payload}
	}
	for _, tt := range []struct {
		name string
		err  error
		want int
		ok   bool
	}{
		{"first", echo(1), 0, true},
		{"last", echo(5), 4, true},
		{"not about a line", echo(0), 0, false},
		{"a line that was not sent", echo(6), 0, false},
		{"no echo", &nlbatch.Error{Errno: unix.ENOENT}, 0, false},
		{"not answered", nlbatch.ErrNotSent, 0, false},
	} {
		if got, ok := refusedLine(tt.err, 5); got != tt.want || ok != tt.ok {
			t.Errorf("%s: %d, %v", tt.name, got, ok)
		}
	}
}

func TestRefusal(t *testing.T) {
	for _, tt := range []struct {
		errno unix.Errno
		want  string
	}{
		{unix.ENOENT, "no such file or directory"},
		{errHashFull, "hash is full (errno 4352)"},
		{nl.IPSET_ERR_TYPE_MISMATCH, "type mismatch (errno 4102)"},
	} {
		err := refusal(&nlbatch.Error{Errno: tt.errno})
		if err.Error() != tt.want || !errors.Is(err, tt.errno) {
			t.Errorf("got %v, want %s", err, tt.want)
		}
	}
}

func TestTemporaryName(t *testing.T) {
	for name, want := range map[string]string{
		"KIPVS-4-VIP":                     "KIPVS-4-VIP~",
		"KIPVS-6-0123456789012345678901x": "KIPVS-6-0123456789012345678901~",
	} {
		if got := temporaryName(name); got != want || len(got) > maxName {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// FuzzListing: whatever the kernel sends, it is decoded or refused, and an element that was decoded encodes again.
func FuzzListing(f *testing.F) {
	e := kernel.Element{Addr: netip.MustParseAddr("fd00::1"), Protocol: inet.TCP, Port: 80, Addr2: netip.MustParseAddr("fd00::2")}
	b := nlbatch.AppendString(make([]byte, nfgenHeaderLen), nl.IPSET_ATTR_SETNAME, "KIPVS-V")
	b = nlbatch.AppendString(b, nl.IPSET_ATTR_TYPENAME, "hash:ip,port,ip")
	b = nlbatch.AppendUint8(b, nl.IPSET_ATTR_FAMILY, unix.AF_INET6)
	b = nlbatch.AppendNest(b, nl.IPSET_ATTR_DATA, func(b []byte) []byte {
		return appendBigUint32(appendBigUint32(b, nl.IPSET_ATTR_MAXELEM, 7), nl.IPSET_ATTR_TIMEOUT, 9)
	})
	b = nlbatch.AppendNest(b, nl.IPSET_ATTR_ADT, func(b []byte) []byte { return appendElement(b, e, 3) })
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = decodeHeader(b)
		members := map[kernel.Element]struct{}{}
		if decodeMembers(b, members) != nil {
			return
		}
		for e := range members {
			if !e.Addr.IsValid() {
				t.Errorf("element without address: %+v", e)
			}
			_ = appendElement(nil, e, 1)
		}
	})
}
