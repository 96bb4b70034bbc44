package kerneltest

import (
	"context"
	"net/netip"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Each operation depends on the previous one.
func orderInOneBatch(b *bench) {
	s, key := setNamed("A"), tcp("10.96.0.1:80")
	rules := matching(s)
	up := []kernel.Op{
		op(kernel.Ensure, kernel.SysctlSetting{Name: "net/ipv4/ip_forward", Value: "1"}),
		op(kernel.Create, kernel.DummyDevice{}),
		op(kernel.Create, s),
		op(kernel.Ensure, rules),
		op(kernel.Create, plain(key)),
		op(kernel.Create, behind(key, dest("10.244.0.1:80", 1))),
		op(kernel.Update, behind(key, dest("10.244.0.1:80", 0))),
		op(kernel.Create, member(s, kernel.Element{Addr: key.Addr.Addr()})),
		op(kernel.Create, bound(key.Addr.Addr())),
		op(kernel.Update, persistent(plain(key), 60, 32)),
	}
	down := []kernel.Op{
		op(kernel.Delete, bound(key.Addr.Addr())),
		op(kernel.Delete, member(s, kernel.Element{Addr: key.Addr.Addr()})),
		op(kernel.Delete, behind(key, dest("10.244.0.1:80", 0))),
		op(kernel.Delete, plain(key)),
		op(kernel.Delete, rules),
		op(kernel.Delete, s),
		op(kernel.Delete, kernel.DummyDevice{}),
	}
	empty := b.read()
	b.must(up...)
	full := b.read()
	holds(b, "server", observed(persistent(plain(key), 60, 32), dest("10.244.0.1:80", 0)), full.Servers[key])
	b.must(down...)
	empty.Sysctls["net/ipv4/ip_forward"] = "1"
	b.unchanged("creating and deleting everything", empty)
	b.must(append(up, down...)...)
	b.unchanged("creating and deleting in one batch", empty)
	b.must(op(kernel.Ensure, kernel.SysctlSetting{Name: "net/ipv4/ip_forward", Value: "0"}))

	// An operation and its opposite alternate; the last one wins.
	create, remove := op(kernel.Create, plain(key)), op(kernel.Delete, plain(key))
	b.must(create, remove, create, remove, create)
	errs := b.apply(create, remove, create, create)
	for i, want := range []string{b.whatExists(), "done", "done", b.whatExists()} {
		if got := meaning(errs[i]); got != want {
			b.Errorf("operation %d: %s, want %s", i, got, want)
		}
	}
}

// Only the first, the middle and the last operation fail.
func errorsHitOnlyTheirOps(b *bench) {
	const n = 1000
	full := setNamed("A")
	full.MaxElem = 65536
	b.must(creates(full, kernel.DummyDevice{}, plain(tcp("10.96.0.1:80")))...)
	other := plain(tcp("10.96.0.1:80"))
	other.Scheduler = "wlc"
	bad := map[int]bool{0: true, n / 2: true, n - 1: true}
	for _, c := range []struct {
		what      string
		good, bad func(i int) kernel.Object
		want      error
	}{
		{"servers", func(i int) kernel.Object { return plain(numbered(i)) },
			func(int) kernel.Object { return other }, kernel.ErrExists},
		{"destinations", func(i int) kernel.Object { return behind(tcp("10.96.0.1:80"), numberedDest(i)) },
			func(i int) kernel.Object { return behind(tcp("10.96.0.9:80"), numberedDest(i)) }, kernel.ErrNotFound},
		{"members", func(i int) kernel.Object { return member(full, kernel.Element{Addr: ip4(101, i)}) },
			func(i int) kernel.Object {
				return kernel.Member{Set: SetPrefix + "NONE", Element: kernel.Element{Addr: ip4(101, i)}}
			}, kernel.ErrNotFound},
		{"members of the wrong family", func(i int) kernel.Object {
			return member(full, kernel.Element{Addr: ip4(102, i)})
		}, func(i int) kernel.Object { return member(full, kernel.Element{Addr: ip6(102, i)}) }, nil},
		{"addresses", func(i int) kernel.Object { return bound(ip4(101, i)) },
			func(int) kernel.Object { return bound(netip.Addr{}) }, nil},
	} {
		all := make([]kernel.Op, n)
		for i := range all {
			all[i] = op(kernel.Create, c.good(i))
			if bad[i] {
				all[i] = op(kernel.Create, c.bad(i))
			}
		}
		for i, err := range b.apply(all...) {
			want := "done"
			if bad[i] {
				want = meaningOf(c.want)
			}
			if got := meaning(err); got != want {
				b.Errorf("%s: operation %d: %v (%s), want %s", c.what, i, err, got, want)
			}
		}
	}
	have := b.read()
	holds(b, "number of servers", n-3+1, len(have.Servers))
	holds(b, "number of destinations", n-3, len(have.Servers[tcp("10.96.0.1:80")].Destinations))
	holds(b, "number of members", 2*(n-3), len(have.Members[full.Name]))
	holds(b, "number of addresses", n-3, len(have.Addresses))
}

func numbered(i int) kernel.ServerKey {
	return kernel.ServerKey{Addr: netip.AddrPortFrom(ip4(101, i), 80), Protocol: inet.TCP}
}

func numberedDest(i int) kernel.Destination {
	return kernel.Destination{Addr: netip.AddrPortFrom(ip4(201, i), 80), Weight: 1}
}

func noOps(b *bench) {
	before := b.read()
	b.apply()
	b.unchanged("an empty batch", before)
}

// After cancellation, no operation takes effect or is reported as successful.
func canceled(b *bench) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	before := b.read()
	all := creates(kernel.DummyDevice{}, setNamed("A"), plain(tcp("10.96.0.1:80")))
	for i, err := range b.Apply(ctx, all) {
		if err == nil {
			b.Errorf("%s succeeded although the context was canceled", all[i])
		}
	}
	if _, err := b.Read(ctx); err == nil {
		b.Error("Read succeeded although the context was canceled")
	}
	if _, err := b.Lookup(ctx, []kernel.ServerKey{tcp("10.96.0.1:80")}); err == nil {
		b.Error("Lookup succeeded although the context was canceled")
	}
	b.unchanged("canceled operations", before)
}
