package ipset

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

func typeOf(e kernel.Element) kernel.SetType {
	if e.Bits2 != 0 {
		return kernel.HashIPPortNet
	}
	return kernel.HashIPPortIP
}

func drawElement(t *rapid.T) kernel.Element {
	size := rapid.SampledFrom([]int{4, 16}).Draw(t, "bytes")
	draw := func(label string) netip.Addr {
		a, _ := netip.AddrFromSlice(rapid.SliceOfN(rapid.Byte(), size, size).Draw(t, label))
		return a
	}
	e := kernel.Element{Addr: draw("address")}
	kind := rapid.IntRange(1, 4).Draw(t, "fields")
	if kind > 1 {
		e.Protocol = rapid.SampledFrom([]inet.Protocol{inet.TCP, inet.UDP, inet.SCTP}).Draw(t, "protocol")
		e.Port = rapid.Uint16().Draw(t, "port")
	}
	if kind > 2 {
		e.Addr2 = draw("second address")
	}
	if kind > 3 {
		e.Bits2 = uint8(rapid.IntRange(1, 8*size).Draw(t, "bits"))
		e.Addr2 = netip.PrefixFrom(e.Addr2, int(e.Bits2)).Masked().Addr()
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
		if err := decodeMembers(typeOf(want), listing, got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(map[kernel.Element]struct{}{want: {}}, got, compareAddrs); diff != "" {
			t.Error(diff)
		}
	})
}

func ranged(prefix string) kernel.Element {
	p := netip.MustParsePrefix(prefix)
	e := kernel.Element{Addr: netip.MustParseAddr("10.0.0.1"), Protocol: inet.TCP, Port: 80, Addr2: p.Addr(), Bits2: uint8(p.Bits())}
	if p.Addr().Is6() {
		e.Addr = netip.MustParseAddr("fd00::1")
	}
	return e
}

// The decoder adds prefix lengths that the kernel omitted, ignores attributes of other types, and skips elements with the flag nomatch.
func TestDecodeRange(t *testing.T) {
	listing := func(e kernel.Element, flags uint32) []byte {
		return nlbatch.AppendNest(make([]byte, nfgenHeaderLen), nl.IPSET_ATTR_ADT, func(b []byte) []byte {
			return nlbatch.AppendNest(b, nl.IPSET_ATTR_DATA, func(b []byte) []byte {
				element := appendElement(nil, e, 1)
				return appendBigUint32(append(b, element[4:]...), nl.IPSET_ATTR_CADT_FLAGS, flags)
			})
		})
	}
	whole, plain := ranged("10.0.0.1/32"), ranged("10.0.0.1/32")
	plain.Bits2 = 0
	tooLong := ranged("10.0.0.0/8")
	tooLong.Bits2 = 33
	for _, tt := range []struct {
		name string
		typ  kernel.SetType
		text []byte
		want []kernel.Element // nil if refused
	}{
		{"length", kernel.HashIPPortNet, listing(ranged("10.0.0.0/8"), 0), []kernel.Element{ranged("10.0.0.0/8")}},
		{"no length", kernel.HashIPPortNet, listing(plain, 0), []kernel.Element{whole}},
		{"no range type", kernel.HashIPPortIP, listing(whole, 0), []kernel.Element{plain}},
		{"exception", kernel.HashIPPortNet, listing(whole, nl.IPSET_FLAG_NOMATCH), []kernel.Element{}},
		{"length of another family", kernel.HashIPPortNet, listing(tooLong, 0), nil},
		{"no range", kernel.HashIPPortNet, listing(kernel.Element{Addr: whole.Addr}, 0), nil},
	} {
		got := map[kernel.Element]struct{}{}
		err := decodeMembers(tt.typ, tt.text, got)
		if (err == nil) != (tt.want != nil) {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if diff := cmp.Diff(tt.want, slices.Collect(maps.Keys(got)), compareAddrs, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: %s", tt.name, diff)
		}
	}
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
		{"range of one", ranged("10.0.0.1/32"), true},
		{"range", ranged("10.0.0.0/8"), true},
		{"half of IPv4", ranged("128.0.0.0/1"), true},
		{"half of IPv6", ranged("8000::/1"), true},
		{"nothing", kernel.Element{}, false},
		{"port without protocol", kernel.Element{Addr: v4, Port: 80}, false},
		{"mapped", kernel.Element{Addr: mapped}, false},
		{"second mapped", kernel.Element{Addr: v4, Protocol: inet.UDP, Addr2: mapped}, false},
		{"range with host bits", ranged("10.0.0.1/8"), false},
		{"range without address", kernel.Element{Addr: v4, Protocol: inet.UDP, Bits2: 8}, false},
		{"too many bits", kernel.Element{Addr: v4, Protocol: inet.UDP, Addr2: v4, Bits2: 33}, false},
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

// No message makes the decoder panic, and every decoded element can be encoded.
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
	f.Add(nlbatch.AppendNest(make([]byte, nfgenHeaderLen), nl.IPSET_ATTR_ADT, func(b []byte) []byte {
		return appendElement(b, ranged("2001:db8::/32"), 1)
	}))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = decodeHeader(b)
		for _, typ := range []kernel.SetType{kernel.HashIPPortIP, kernel.HashIPPortNet} {
			members := map[kernel.Element]struct{}{}
			if decodeMembers(typ, b, members) != nil {
				continue
			}
			for e := range members {
				if !e.Addr.IsValid() {
					t.Errorf("decoded an element without an address: %+v", e)
				}
				if isNet := typ == kernel.HashIPPortNet; isNet != (e.Bits2 != 0) || int(e.Bits2) > e.Addr2.BitLen() {
					t.Errorf("decoded an element of %s with %d bits: %s", typ, e.Bits2, e)
				}
				_ = appendElement(nil, e, 1)
			}
		}
	})
}
