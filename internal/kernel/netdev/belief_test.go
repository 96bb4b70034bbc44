package netdev

import (
	"net/netip"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

func bound(addr string) kernel.BoundAddress {
	return kernel.BoundAddress{Addr: netip.MustParseAddr(addr)}
}

func TestNews(t *testing.T) {
	const ours, other = 7, 8
	here, gone := bound("10.0.0.1"), bound("10.0.0.2")
	known := func() *belief {
		b := &belief{}
		b.learn(ours, map[netip.Addr]struct{}{gone.Addr: {}})
		b.expect([]kernel.Op{{Verb: kernel.Create, Object: here}, {Verb: kernel.Delete, Object: gone}})
		return b
	}
	unknown := func() *belief { b := known(); b.forget(); return b }
	addr := func(index int, a kernel.BoundAddress, present bool) func(*belief) bool {
		return func(b *belief) bool { return b.addressNews(address{index: index, addr: a.Addr, prefix: 32}, present) }
	}
	link := func(index int, name string, present bool) func(*belief) bool {
		return func(b *belief) bool { return b.linkNews(index, name, present) }
	}
	linkLocal := func(b *belief) bool {
		return b.addressNews(address{index: ours, addr: netip.MustParseAddr("fe80::1"), prefix: 64}, true)
	}
	for _, tc := range []struct {
		name  string
		event func(*belief) bool
		// whether it is news to one who knows the addresses, and to one who does not
		known, unknown bool
	}{
		{"our own creation", addr(ours, here, true), false, true},
		{"our own deletion", addr(ours, gone, false), false, true},
		{"our address deleted", addr(ours, here, false), true, true},
		{"deleted address back", addr(ours, gone, true), true, true},
		{"address of another device", addr(other, here, false), false, false},
		{"link-local address made by the kernel", linkLocal, false, false},
		{"device changed flags", link(ours, kernel.Device, true), false, true},
		{"device deleted", link(ours, kernel.Device, false), true, true},
		{"device renamed", link(ours, "other", true), true, true},
		{"device made anew", link(other, kernel.Device, true), true, true},
		{"another device", link(other, "eth0", true), false, false},
		{"another device deleted", link(other, "eth0", false), false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := tc.event(known()); got != tc.known {
				t.Errorf("news to one who knows: %t", got)
			}
			if got := tc.event(unknown()); got != tc.unknown {
				t.Errorf("news to one who does not: %t", got)
			}
		})
	}
}

func TestNewsIsBelieved(t *testing.T) {
	b := &belief{}
	b.learn(7, map[netip.Addr]struct{}{})
	a := address{index: 7, addr: bound("10.0.0.1").Addr, prefix: 32}
	for i, present := range []bool{true, false, true} {
		if !b.addressNews(a, present) {
			t.Errorf("change %d is no news", i)
		}
		if b.addressNews(a, present) {
			t.Errorf("change %d is news twice", i)
		}
	}
}
