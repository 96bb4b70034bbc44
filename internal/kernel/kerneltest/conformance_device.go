package kerneltest

import (
	"net/netip"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

func bound(a netip.Addr) kernel.BoundAddress { return kernel.BoundAddress{Addr: a} }

func addrs(list ...netip.Addr) map[netip.Addr]kernel.Binding {
	all := map[netip.Addr]kernel.Binding{}
	for _, a := range list {
		all[a] = kernel.OnDevice
	}
	return all
}

func device(b *bench) {
	dev := kernel.DummyDevice{}
	holds(b, "device at first", false, b.read().Device)
	holds(b, "device at first", false, b.hasDevice())
	b.must(op(kernel.Delete, dev), op(kernel.Create, dev))
	holds(b, "device", true, b.read().Device)
	holds(b, "device", true, b.hasDevice())
	b.refused(kernel.ErrExists, op(kernel.Create, dev))
	b.must(op(kernel.Delete, dev), op(kernel.Delete, dev))
	holds(b, "device at last", false, b.read().Device)
}

func addresses(b *bench) {
	a4, a6 := bound(ip4(96, 1)), bound(ip6(96, 1))
	b.must(creates(kernel.DummyDevice{}, a4, a6, a4, a6)...)
	holds(b, "addresses", addrs(a4.Addr, a6.Addr), b.read().Addresses)
	b.must(ops(kernel.Delete, a4, a4)...)
	holds(b, "addresses", addrs(a6.Addr), b.read().Addresses)
	b.must(op(kernel.Create, a4), op(kernel.Delete, a6))
	holds(b, "addresses", addrs(a4.Addr), b.read().Addresses)
	b.must(op(kernel.Delete, a4), op(kernel.Create, a6), op(kernel.Create, a4), op(kernel.Delete, a6))
	holds(b, "addresses removed and added in one batch", addrs(a4.Addr), b.read().Addresses)

	want, all := addrs(a4.Addr), []kernel.Op(nil)
	for i := range 1000 {
		for _, a := range []netip.Addr{ip4(97, i), ip6(97, i)} {
			want[a] = kernel.OnDevice
			all = append(all, op(kernel.Create, bound(a)))
		}
	}
	b.must(all...)
	holds(b, "addresses", want, b.read().Addresses)

	b.must(op(kernel.Delete, kernel.DummyDevice{}))
	holds(b, "addresses without device", nil, b.read().Addresses)
	b.must(op(kernel.Create, kernel.DummyDevice{}))
	holds(b, "addresses of a new device", nil, b.read().Addresses)
}

// localRoutes changes addresses of kube-ipvs0 to routes and back.
func localRoutes(b *bench) {
	one, two := ip4(96, 1), ip4(96, 2)
	have := func(what string, binding kernel.Binding) {
		b.Helper()
		holds(b, what, map[netip.Addr]kernel.Binding{one: binding, two: binding}, b.read().Addresses)
	}
	both := func(binding kernel.Binding, moved bool) []kernel.Object {
		return []kernel.Object{kernel.BoundAddress{Addr: one, Binding: binding, Moved: moved}, kernel.BoundAddress{Addr: two, Binding: binding, Moved: moved}}
	}
	b.must(creates(kernel.DummyDevice{}, bound(one), bound(two))...)
	for range 2 {
		b.must(creates(both(kernel.Routed, false)...)...)
		have("addresses and routes", kernel.BoundTwice)
	}
	for range 2 {
		b.must(creates(both(kernel.Routed, true)...)...)
		have("routes", kernel.Routed)
	}
	b.must(creates(both(kernel.OnDevice, true)...)...)
	have("addresses", kernel.OnDevice)
	b.must(creates(both(kernel.Routed, false)...)...)
	for range 2 {
		b.must(ops(kernel.Delete, both(kernel.BoundTwice, false)...)...)
		holds(b, "neither", nil, b.read().Addresses)
	}
	b.must(creates(both(kernel.Routed, false)...)...)
	b.byAdmin(b.Admin.DelAddress(kernel.BoundAddress{Addr: one, Binding: kernel.Routed}))
	holds(b, "routes", map[netip.Addr]kernel.Binding{two: kernel.Routed}, b.read().Addresses)
	b.must(ops(kernel.Delete, both(kernel.Routed, false)...)...)
	b.must(creates(both(kernel.Routed, false)...)...)
	b.must(op(kernel.Delete, kernel.DummyDevice{}))
	holds(b, "routes without device", nil, b.read().Addresses)
	b.refused(kernel.ErrNotFound, creates(both(kernel.Routed, false)...)...)
}

func addressRefusals(b *bench) {
	a4, a6 := bound(ip4(96, 1)), bound(ip6(96, 1))
	b.must(ops(kernel.Delete, a4, a6)...)
	b.refused(kernel.ErrNotFound, creates(a4, a6)...)
	b.must(op(kernel.Create, kernel.DummyDevice{}))
	b.refused(nil, op(kernel.Create, bound(netip.Addr{})))
}

func deviceByOthers(b *bench) {
	a4, a6 := bound(ip4(96, 1)), bound(ip6(96, 1))
	b.must(creates(kernel.DummyDevice{}, a4, a6)...)
	b.byAdmin(b.Admin.DelAddress(a4))
	holds(b, "addresses", addrs(a6.Addr), b.read().Addresses)
	b.byAdmin(b.Admin.DelDevice())
	holds(b, "device", false, b.read().Device)
	b.must(creates(kernel.DummyDevice{}, a4, a6)...)
	holds(b, "addresses", addrs(a4.Addr, a6.Addr), b.read().Addresses)
}

func ipv6Off(b *bench) {
	a4, a6 := bound(ip4(96, 1)), bound(ip6(96, 1))
	turn := func(name, value string) {
		b.byAdmin(b.Admin.SetSysctl(kernel.SysctlSetting{Name: name, Value: value}))
	}
	turn(kernel.IPv6SwitchOfNext, "1")
	holds(b, "IPv6 off before there is a device", true, b.read().IPv6Off())
	b.must(creates(kernel.DummyDevice{}, a4)...)
	holds(b, "IPv6 off on a new device", true, b.read().IPv6Off())
	b.refused(nil, op(kernel.Create, a6))
	turn(kernel.IPv6Switch, "0")
	holds(b, "IPv6 off", false, b.read().IPv6Off())
	b.must(op(kernel.Create, a6))
	turn(kernel.IPv6Switch, "1")
	holds(b, "IPv6 off again", true, b.read().IPv6Off())
	holds(b, "addresses", addrs(a4.Addr), b.read().Addresses)
	b.must(op(kernel.Delete, a6))
	b.must(op(kernel.Delete, kernel.DummyDevice{}))
	turn(kernel.IPv6SwitchOfNext, "0")
	b.must(creates(kernel.DummyDevice{}, a6)...)
}

// Sysctls are the sysctls that a Kernel under test must read.
var Sysctls = []string{"net/ipv4/ip_forward", "net/ipv4/vs/conntrack", "net/ipv4/vs/expire_nodest_conn"}

func sysctls(b *bench) {
	write := func(name, value string) kernel.Op {
		return op(kernel.Ensure, kernel.SysctlSetting{Name: name, Value: value})
	}
	for _, name := range Sysctls {
		for _, value := range []string{"1", "0"} {
			b.must(write(name, value), write(name, value))
			holds(b, name, value, b.read().Sysctls[name])
		}
		b.byAdmin(b.Admin.SetSysctl(kernel.SysctlSetting{Name: name, Value: "1"}))
		holds(b, name, "1", b.read().Sysctls[name])
	}
	b.refused(nil, write(Sysctls[0], "much"))
	b.refused(kernel.ErrUnavailable, write("net/ipv4/nosuch", "1"), write("net/ipv4/vs/nosuch", "1"))
}
