package ipvs

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

var compareAddrs = cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })

func drawAddr(t *rapid.T, f inet.Family, label string) netip.AddrPort {
	b := rapid.SliceOfN(rapid.ByteRange(1, 0xfe), f.Bits()/8, f.Bits()/8).Draw(t, label)
	a, _ := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(a, rapid.Uint16Range(1, 65535).Draw(t, label+" port"))
}

func drawServer(t *rapid.T) kernel.Server {
	family := rapid.SampledFrom(inet.Families).Draw(t, "family")
	s := kernel.Server{
		Key: kernel.ServerKey{
			Addr:     drawAddr(t, family, "address"),
			Protocol: rapid.SampledFrom([]inet.Protocol{inet.TCP, inet.UDP, inet.SCTP}).Draw(t, "protocol"),
		},
		Scheduler: rapid.SampledFrom([]string{"rr", "wrr", "lc", "sh", "mh"}).Draw(t, "scheduler"),
		Flags:     rapid.Uint32().Draw(t, "flags") & kernel.FlagsConfigurable,
		MaskBits:  uint8(rapid.IntRange(1, family.Bits()).Draw(t, "mask")),
	}
	if s.Flags&kernel.FlagPersistent != 0 {
		s.Timeout = rapid.Uint32Range(1, 86400).Draw(t, "timeout")
	}
	return s
}

func TestServerRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawServer(t)
		attrs, err := encodeServer(want)
		if err != nil {
			t.Fatal(err)
		}
		got, ok, err := decodeServer(append(genlHeader(cmdNewService, familyVersion), attrs...))
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		if diff := cmp.Diff(want, got, compareAddrs); diff != "" {
			t.Error(diff)
		}
	})
}

func TestDestinationRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		server := drawServer(t)
		want := kernel.Destination{
			Addr:   drawAddr(t, server.Key.Family(), "destination"),
			Weight: rapid.Uint32().Draw(t, "weight"),
		}
		attrs, err := encodeDestination(kernel.ServerDestination{Server: server.Key, Destination: want})
		if err != nil {
			t.Fatal(err)
		}
		got, err := decodeDestination(append(genlHeader(cmdNewDest, familyVersion), attrs...), server.Key.Family())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(kernel.ObservedDestination{Destination: want}, got, compareAddrs); diff != "" {
			t.Error(diff)
		}
	})
}

func TestMask(t *testing.T) {
	for _, tt := range []struct {
		addr string
		bits uint8
		want string // bytes sent to the kernel, if they do not depend on the machine
	}{
		{"10.0.0.1:80", 0, "\xff\xff\xff\xff"},
		{"10.0.0.1:80", 32, "\xff\xff\xff\xff"},
		{"10.0.0.1:80", 20, "\xff\xff\xf0\x00"},
		{"[fd00::1]:80", 0, ""},
		{"[fd00::1]:80", 64, ""},
	} {
		s := kernel.Server{Key: kernel.ServerKey{Addr: netip.MustParseAddrPort(tt.addr)}, MaskBits: tt.bits}
		got, err := netmask(s)
		if err != nil {
			t.Fatal(err)
		}
		if tt.want != "" && string(got) != tt.want {
			t.Errorf("%s/%d: %q, want %q", tt.addr, tt.bits, got, tt.want)
		}
		want := int(tt.bits)
		if want == 0 {
			want = s.Key.Family().Bits()
		}
		if back, err := maskBits(s.Key.Family(), got); err != nil || int(back) != want {
			t.Errorf("%s/%d is read back as %d, %v", tt.addr, tt.bits, back, err)
		}
	}
}

func TestEncodeRefuses(t *testing.T) {
	key := func(s string) kernel.ServerKey {
		return kernel.ServerKey{Addr: netip.MustParseAddrPort(s), Protocol: inet.TCP}
	}
	dest := kernel.Destination{Addr: netip.MustParseAddrPort("10.0.0.9:80")}
	for _, tt := range []struct {
		name string
		op   kernel.Op
		want string
	}{
		{"no address", kernel.Op{Verb: kernel.Create, Object: kernel.Server{}}, "no address"},
		{"no address to delete", kernel.Op{Verb: kernel.Delete, Object: kernel.Server{}}, "no address"},
		{"mapped", kernel.Op{Verb: kernel.Create, Object: kernel.Server{Key: key("[::ffff:10.0.0.1]:80")}}, "IPv4-mapped"},
		{"mask", kernel.Op{Verb: kernel.Create, Object: kernel.Server{Key: key("10.0.0.1:80"), MaskBits: 33}}, "too long"},
		{"verb", kernel.Op{Verb: kernel.Ensure, Object: kernel.Server{Key: key("10.0.0.1:80")}}, "verb"},
		{"destination's verb", kernel.Op{Verb: kernel.Ensure, Object: kernel.ServerDestination{Server: key("10.0.0.1:80")}}, "verb"},
		{"destination's server", kernel.Op{Verb: kernel.Create, Object: kernel.ServerDestination{Destination: dest}}, "virtual server"},
		{"destination", kernel.Op{Verb: kernel.Delete, Object: kernel.ServerDestination{Server: key("10.0.0.1:80")}}, "no address"},
		{"kind", kernel.Op{Verb: kernel.Create, Object: kernel.DummyDevice{}}, "not an IPVS object"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := (&Backend{}).encode(tt.op); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

func TestMarkServersAreSkipped(t *testing.T) {
	attrs := nlbatch.AppendNest(nil, attrService, func(b []byte) []byte {
		b = nlbatch.AppendUint16(b, svcAddressFamily, 2)
		return nlbatch.AppendUint32(b, svcFirewallMark, 7)
	})
	_, ok, err := decodeServer(append(genlHeader(cmdNewService, familyVersion), attrs...))
	if ok || err != nil {
		t.Error(ok, err)
	}
}

func FuzzDecode(f *testing.F) {
	s := kernel.Server{Key: kernel.ServerKey{Addr: netip.MustParseAddrPort("[fd00::1]:80"), Protocol: inet.TCP}, Scheduler: "rr"}
	server, err := encodeServer(s)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(append(genlHeader(1, 1), server...))
	dest, err := encodeDestination(kernel.ServerDestination{Server: s.Key, Destination: kernel.Destination{Addr: s.Key.Addr}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(append(genlHeader(1, 1), dest...))
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, ok, err := decodeServer(b); err == nil && ok && !s.Key.Addr.IsValid() {
			t.Errorf("decoded a server without an address: %+v", s)
		}
		for _, family := range inet.Families {
			if d, err := decodeDestination(b, family); err == nil && !d.Addr.IsValid() {
				t.Errorf("decoded a destination without an address: %+v", d)
			}
		}
		_, _ = decodeFamily(b)
	})
}
