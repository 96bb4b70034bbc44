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
	addr := func(index int, a kernel.BoundAddress, present bool) func(*belief) news {
		return func(b *belief) news { return b.addressNews(address{index: index, addr: a.Addr, prefix: 32}, present) }
	}
	link := func(index int, name string, present bool) func(*belief) news {
		return func(b *belief) news { return b.linkNews(index, name, present) }
	}
	linkLocal := func(index int) func(*belief) news {
		return func(b *belief) news {
			return b.addressNews(address{index: index, addr: netip.MustParseAddr("fe80::1"), prefix: 64}, true)
		}
	}
	for _, tc := range []struct {
		name  string
		event func(*belief) news
		// whether it is news to one who knows the addresses, and to one who does not
		known, unknown news
	}{
		{"our own creation", addr(ours, here, true), 0, deviceNews},
		{"our own deletion", addr(ours, gone, false), 0, deviceNews},
		{"our address deleted", addr(ours, here, false), deviceNews, deviceNews},
		{"deleted address back", addr(ours, gone, true), deviceNews, deviceNews},
		{"address of another device", addr(other, here, true), nodeNews, nodeNews},
		{"address of another device deleted", addr(other, here, false), nodeNews, nodeNews},
		{"loopback address", addr(1, bound("127.0.0.2"), true), 0, 0},
		{"link-local address made by the kernel", linkLocal(ours), 0, 0},
		{"link-local address of another device", linkLocal(other), 0, 0},
		{"device changed flags", link(ours, kernel.Device, true), 0, everything},
		{"device deleted", link(ours, kernel.Device, false), everything, everything},
		{"device renamed", link(ours, "other", true), everything, everything},
		{"device made anew", link(other, kernel.Device, true), everything, everything},
		{"another device", link(other, "eth0", true), 0, 0},
		{"another device deleted", link(other, "eth0", false), 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := tc.event(known()); got != tc.known {
				t.Errorf("news to one who knows: %b, want %b", got, tc.known)
			}
			if got := tc.event(unknown()); got != tc.unknown {
				t.Errorf("news to one who does not: %b, want %b", got, tc.unknown)
			}
		})
	}
}

func TestNewsIsBelieved(t *testing.T) {
	b := &belief{}
	b.learn(7, map[netip.Addr]struct{}{})
	a := address{index: 7, addr: bound("10.0.0.1").Addr, prefix: 32}
	for i, present := range []bool{true, false, true} {
		if b.addressNews(a, present) != deviceNews {
			t.Errorf("change %d is no news", i)
		}
		if b.addressNews(a, present) != 0 {
			t.Errorf("change %d is news twice", i)
		}
	}
}
