package netdev

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

func TestAddressRequestReadsBack(t *testing.T) {
	for _, text := range []string{"10.96.0.1", "2001:db8::1"} {
		for _, verb := range []kernel.Verb{kernel.Create, kernel.Delete} {
			obj := bound(text)
			got, err := parseAddress(addressRequest(verb, obj.Addr, 5).Payload)
			want := address{index: 5, addr: obj.Addr, prefix: uint8(obj.Addr.BitLen())}
			if err != nil || got != want {
				t.Errorf("%s: parsed %+v, %v; want %+v", text, got, err, want)
			}
		}
	}
}

func FuzzParseAddress(f *testing.F) {
	f.Add(addressRequest(kernel.Create, bound("10.96.0.1").Addr, 5).Payload)
	f.Add(addressRequest(kernel.Create, bound("2001:db8::1").Addr, 5).Payload)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		if a, err := parseAddress(b); err == nil && !a.addr.IsValid() {
			t.Errorf("parsed %x as an invalid address", b)
		}
		_, _, _ = parseLink(b)
	})
}

func TestExplainAddress(t *testing.T) {
	create := kernel.Op{Verb: kernel.Create, Object: bound("2001:db8::1")}
	remove := kernel.Op{Verb: kernel.Delete, Object: bound("2001:db8::1")}
	for _, tc := range []struct {
		op   kernel.Op
		err  error
		want error // nil: no error
	}{
		{create, nil, nil},
		{create, unix.EEXIST, nil},
		{create, unix.ENODEV, kernel.ErrNotFound},
		{create, unix.EACCES, unix.EACCES},
		{create, unix.ENOBUFS, unix.ENOBUFS},
		{remove, unix.EADDRNOTAVAIL, nil},
		{remove, unix.ENODEV, nil},
		{remove, unix.EPERM, unix.EPERM},
	} {
		if got := explainAddress(tc.op, tc.op.Verb, tc.err); !errors.Is(got, tc.want) {
			t.Errorf("%s with %v: %v, want %v", tc.op, tc.err, got, tc.want)
		}
	}
}
