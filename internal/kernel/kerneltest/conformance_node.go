package kerneltest

import (
	"context"
	"net/netip"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

func nodeAddresses(b *bench) {
	want := func(what string, list ...netip.Addr) {
		b.Helper()
		have, err := b.NodeAddresses(context.Background())
		if err != nil {
			b.Fatal(err)
		}
		holds(b, what, list, have)
	}
	want("at first")
	a, a2, six := netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("2001:db8::10")
	for _, addr := range []netip.Addr{six, a, a2} {
		b.byAdmin(b.Admin.AddNodeAddress(addr))
	}
	want("sorted", a2, a, six)
	b.must(creates(kernel.DummyDevice{}, bound(ip4(96, 1)), bound(ip6(96, 1)), bound(a))...)
	want("virtual addresses are not the node's", a2, a, six)
	b.byAdmin(b.Admin.DelNodeAddress(a))
	want("after removing an address", a2, six)

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if list, err := b.NodeAddresses(ctx); err == nil || list != nil {
		b.Errorf("canceled: %v, %v", list, err)
	}
}
