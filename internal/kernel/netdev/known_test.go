package netdev

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

func bound(addr string) kernel.BoundAddress {
	return kernel.BoundAddress{Addr: netip.MustParseAddr(addr)}
}

func TestEvents(t *testing.T) {
	const ours, other = 7, 8
	here, gone := bound("10.0.0.1"), bound("10.0.0.2")
	known := func() *knownDevice {
		b := &knownDevice{}
		b.read(b.beginRead(), ours, map[netip.Addr]kernel.Binding{gone.Addr: kernel.OnDevice})
		b.expect([]kernel.Op{{Verb: kernel.Create, Object: here}, {Verb: kernel.Delete, Object: gone}})
		return b
	}
	unknown := func() *knownDevice { b := known(); b.forget(); return b }
	addr := func(index int, a kernel.BoundAddress, present bool) func(*knownDevice) changes {
		return func(b *knownDevice) changes {
			return b.address(address{index: index, addr: a.Addr, prefix: 32}, present)
		}
	}
	link := func(index int, name string, present bool) func(*knownDevice) changes {
		return func(b *knownDevice) changes { return b.link(index, name, present) }
	}
	linkLocal := func(index int) func(*knownDevice) changes {
		return func(b *knownDevice) changes {
			return b.address(address{index: index, addr: netip.MustParseAddr("fe80::1"), prefix: 64}, true)
		}
	}
	for _, tc := range []struct {
		name  string
		event func(*knownDevice) changes
		// known contains the changes if the addresses are known, and unknown if they are not.
		known, unknown changes
	}{
		{"own creation", addr(ours, here, true), 0, deviceChanged},
		{"own deletion", addr(ours, gone, false), 0, deviceChanged},
		{"address deleted by another program", addr(ours, here, false), deviceChanged, deviceChanged},
		{"deleted address added again", addr(ours, gone, true), deviceChanged, deviceChanged},
		{"address of another device", addr(other, here, true), nodeChanged, nodeChanged},
		{"address of another device deleted", addr(other, here, false), nodeChanged, nodeChanged},
		{"loopback address", addr(1, bound("127.0.0.2"), true), 0, 0},
		{"link-local address of the kernel", linkLocal(ours), 0, 0},
		{"link-local address of another device", linkLocal(other), 0, 0},
		{"device changed flags", link(ours, kernel.Device, true), 0, everything},
		{"device deleted", link(ours, kernel.Device, false), everything, everything},
		{"device renamed", link(ours, "other", true), everything, everything},
		{"device created again", link(other, kernel.Device, true), everything, everything},
		{"another device", link(other, "eth0", true), 0, 0},
		{"another device deleted", link(other, "eth0", false), 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := tc.event(known()); got != tc.known {
				t.Errorf("addresses known: changes %b, want %b", got, tc.known)
			}
			if got := tc.event(unknown()); got != tc.unknown {
				t.Errorf("addresses unknown: changes %b, want %b", got, tc.unknown)
			}
		})
	}
}

func TestEventsAreRecorded(t *testing.T) {
	b := &knownDevice{}
	b.read(b.beginRead(), 7, map[netip.Addr]kernel.Binding{})
	a := address{index: 7, addr: bound("10.0.0.1").Addr, prefix: 32}
	for i, present := range []bool{true, false, true} {
		if b.address(a, present) != deviceChanged {
			t.Errorf("event %d does not count as a change", i)
		}
		if b.address(a, present) != 0 {
			t.Errorf("the repeated event %d counts as a change", i)
		}
	}
}

func TestReadDuringWrite(t *testing.T) {
	written := kernel.BoundAddress{Addr: netip.MustParseAddr("10.96.0.1")}
	k := &knownDevice{}
	k.read(k.beginRead(), 7, map[netip.Addr]kernel.Binding{})
	writes := k.beginRead()
	k.expect([]kernel.Op{{Verb: kernel.Create, Object: written}})
	k.read(writes, 7, map[netip.Addr]kernel.Binding{})
	if changed := k.address(address{index: 7, addr: written.Addr}, true); changed != 0 {
		t.Errorf("the event of our own write counts as change %b", changed)
	}
	k.forget()
	k.read(k.beginRead(), 7, map[netip.Addr]kernel.Binding{written.Addr: kernel.OnDevice})
	if changed := k.address(address{index: 7, addr: written.Addr}, true); changed != 0 {
		t.Errorf("after an error and a read, an address that was read counts as change %b", changed)
	}
}

func TestKnownByIndex(t *testing.T) {
	b := &Backend{known: &knownDevice{}}
	dummy := func(index int, alias string) netlink.Link {
		return &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: index, Name: "old", Alias: alias}}
	}
	want := func(when string, link netlink.Link, ours bool, unmarked int) {
		t.Helper()
		if b.isOurs(link) != ours {
			t.Errorf("%s: link %d is ours: %t", when, link.Attrs().Index, !ours)
		}
		if have := b.known.withoutMark(); have != unmarked {
			t.Errorf("%s: link %d has no mark, want %d", when, have, unmarked)
		}
	}
	want("at first", dummy(7, ""), false, 0)
	want("another agent's", dummy(7, deviceAlias), true, 0)
	b.known.found(7, false)
	want("found", dummy(7, ""), true, 7)
	b.known.link(7, "old", true)
	b.known.read(b.known.beginRead(), 0, nil)
	want("renamed", dummy(7, ""), true, 7)
	want("another type", &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Index: 7}}, false, 7)
	b.known.found(8, true)
	want("another took the name", dummy(7, ""), true, 7)
	want("another took the name", dummy(8, ""), true, 7)
	b.known.settled(7)
	want("marked", dummy(7, ""), true, 0)
	b.known.found(8, false)
	b.known.link(8, "older", false)
	want("deleted", dummy(8, ""), false, 0)
	b.known.found(7, false)
	b.known.found(7, true)
	want("marked by another agent", dummy(7, ""), true, 0)
	b.known.created(9)
	want("created", dummy(9, ""), true, 9)
}
