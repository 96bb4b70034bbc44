package kerneltest

import (
	"context"
	"math"
	"net/netip"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

func manyKinds() []kernel.Server {
	list := []kernel.Server{
		plain(key("10.96.0.1:53", inet.UDP)),
		plain(key("10.96.0.1:53", inet.TCP)),
		plain(key("10.96.0.1:53", inet.SCTP)),
		plain(key("[fd00:10:96::1]:53", inet.UDP)),
		plain(key("[fd00:10:96::1]:53", inet.TCP)),
		plain(key("[fd00:10:96::1]:53", inet.SCTP)),
		plain(tcp("10.96.0.2:65535")),
		persistent(plain(tcp("10.96.1.1:80")), 10800, 32),
		persistent(plain(tcp("10.96.1.2:80")), 1, 24),
		persistent(plain(tcp("10.96.1.3:80")), 86400, 1),
		persistent(plain(tcp("[fd00:10:96:1::1]:80")), 10800, 128),
		persistent(plain(tcp("[fd00:10:96:1::2]:80")), 360, 64),
		persistent(plain(tcp("[fd00:10:96:1::3]:80")), 360, 1),
		persistent(plain(tcp("10.96.1.4:0")), 360, 32), // all ports
		persistent(plain(key("[fd00:10:96:1::4]:0", inet.UDP)), 360, 128),
	}
	for i, scheduler := range schedulers {
		s := plain(kernel.ServerKey{Addr: netip.AddrPortFrom(ip4(97, i), 80), Protocol: inet.TCP})
		s.Scheduler = scheduler
		list = append(list, s)
	}
	for i, flags := range []uint32{
		kernel.FlagSched1, kernel.FlagSched2, kernel.FlagSched3, kernel.FlagSched1 | kernel.FlagSched2,
		kernel.FlagSched1 | kernel.FlagSched2 | kernel.FlagSched3,
	} {
		s := plain(kernel.ServerKey{Addr: netip.AddrPortFrom(ip4(98, i), 80), Protocol: inet.TCP})
		s.Scheduler, s.Flags = "mh", flags
		list = append(list, s, persistentCopy(s))
	}
	once := plain(key("10.96.2.1:53", inet.UDP))
	once.Flags = kernel.FlagOnePacket
	return append(list, once)
}

func persistentCopy(s kernel.Server) kernel.Server {
	s.Key.Addr = netip.AddrPortFrom(s.Key.Addr.Addr(), s.Key.Addr.Port()+1)
	return persistent(s, 60, uint8(s.Key.Family().Bits()))
}

// Schedulers does not change the kernel.
func schedulersOf(b *bench) {
	before := b.read()
	has := b.Schedulers(context.Background(), []string{"rr", "sh", "nosuch"})
	holds(b, "schedulers", map[string]bool{"rr": true, "sh": true, "nosuch": false}, has)
	b.unchanged("asking for schedulers", before)
	holds(b, "no schedulers requested", map[string]bool{}, b.Schedulers(context.Background(), nil))
}

func serverReadBack(b *bench) {
	want := map[kernel.ServerKey]kernel.ObservedServer{}
	for _, s := range manyKinds() {
		b.must(op(kernel.Create, s))
		want[s.Key] = observed(s)
	}
	holds(b, "servers", want, b.read().Servers)
}

func serverUpdateInPlace(b *bench) {
	key := tcp("10.96.0.1:80")
	b.must(creates(plain(key), behind(key, dest("10.244.0.1:8080", 1)), behind(key, dest("10.244.0.2:8080", 0)))...)
	sticky := persistent(plain(key), 300, 32)
	masked := persistent(plain(key), 600, 24)
	hashed := plain(key)
	hashed.Scheduler, hashed.Flags = "mh", kernel.FlagSched1|kernel.FlagSched2
	for _, s := range []kernel.Server{sticky, masked, hashed, plain(key)} {
		b.must(op(kernel.Update, s))
		want := observed(s, dest("10.244.0.1:8080", 1), dest("10.244.0.2:8080", 0))
		holds(b, "after "+s.String(), want, b.read().Servers[key])
	}
}

func serverRefusals(b *bench) {
	v4, v6 := plain(tcp("10.96.0.1:80")), plain(tcp("[fd00:10:96::1]:80"))
	b.refused(kernel.ErrNotFound, op(kernel.Update, v4))
	b.must(creates(v4, v6)...)
	other := v4
	other.Scheduler = "wlc"
	b.refused(kernel.ErrExists, op(kernel.Create, other))
	b.exists(op(kernel.Create, v4))
	// The same address with another protocol or port belongs to another virtual server.
	b.must(creates(plain(key("10.96.0.1:80", inet.UDP)), plain(tcp("10.96.0.1:81")))...)

	unknown, unknownNew := v4, plain(tcp("10.96.0.2:80"))
	unknown.Scheduler, unknownNew.Scheduler = "nosuch", "nosuch"
	b.refused(kernel.ErrUnavailable, op(kernel.Create, unknownNew), op(kernel.Update, unknown))

	for _, s := range []kernel.Server{v4, v6} {
		tooLong := persistent(s, 60, uint8(s.Key.Family().Bits()+1))
		tooLongNew := tooLong
		tooLongNew.Key.Protocol = inet.SCTP
		b.refused(nil, op(kernel.Update, tooLong), op(kernel.Create, tooLongNew))
	}
}

// Zero mask bits mean the full address: the kernel would reject an IPv6 server with zero mask bits, and treat all clients of an IPv4
// server as one.
func serverWithoutMask(b *bench) {
	for _, key := range []kernel.ServerKey{tcp("10.96.0.1:80"), tcp("[fd00:10:96::1]:80")} {
		full := uint8(key.Family().Bits())
		b.must(op(kernel.Create, persistent(plain(key), 60, 0)))
		holds(b, "a new server", observed(persistent(plain(key), 60, full)), b.read().Servers[key])
		b.must(op(kernel.Update, persistent(plain(key), 60, full-1)), op(kernel.Update, persistent(plain(key), 90, 0)))
		holds(b, "an updated server", observed(persistent(plain(key), 90, full)), b.read().Servers[key])
	}
}

func serverDeleteIsIdempotent(b *bench) {
	key := tcp("10.96.0.1:80")
	b.must(op(kernel.Delete, plain(key)))
	b.must(op(kernel.Delete, behind(key, dest("10.244.0.1:80", 1))))
	b.must(creates(plain(key))...)
	b.must(op(kernel.Delete, behind(key, dest("10.244.0.1:80", 1))))
	b.must(op(kernel.Delete, kernel.Server{Key: key}), op(kernel.Delete, kernel.Server{Key: key}))
	holds(b, "servers", nil, b.read().Servers)
}

func serverDeleteDropsDestinations(b *bench) {
	key := tcp("10.96.0.1:80")
	b.must(creates(plain(key), behind(key, dest("10.244.0.1:80", 1)))...)
	b.must(op(kernel.Delete, plain(key)), op(kernel.Create, plain(key)))
	holds(b, "a recreated server", observed(plain(key)), b.read().Servers[key])
	b.must(op(kernel.Create, behind(key, dest("10.244.0.1:80", 1))))
}

func destinationReadBack(b *bench) {
	for _, c := range []struct {
		server kernel.Server
		dests  []kernel.Destination
	}{
		{plain(tcp("10.96.0.1:80")), []kernel.Destination{
			dest("10.244.0.1:8080", 1), dest("10.244.0.1:8081", 0), dest("10.244.0.2:80", 65535),
			dest("10.244.0.3:80", 65536), dest("10.244.0.4:80", math.MaxInt32),
		}},
		{plain(tcp("[fd00:10:96::1]:80")), []kernel.Destination{
			dest("[fd00:10:244::1]:8080", 1), dest("[fd00:10:244::2]:8080", math.MaxInt32),
		}},
		{plain(key("10.96.0.1:80", inet.SCTP)), []kernel.Destination{dest("10.244.0.1:36412", 7)}},
		{plain(key("10.96.0.1:80", inet.UDP)), []kernel.Destination{dest("10.244.0.1:53", 7)}},
	} {
		b.must(op(kernel.Create, c.server))
		for _, d := range c.dests {
			b.must(op(kernel.Create, behind(c.server.Key, d)))
		}
		holds(b, c.server.String(), observed(c.server, c.dests...), b.read().Servers[c.server.Key])
	}
}

func destinationEditsKeepTheOthers(b *bench) {
	key := tcp("10.96.0.1:80")
	b.must(creates(plain(key), behind(key, dest("10.244.0.1:80", 1)), behind(key, dest("10.244.0.2:80", 2)),
		behind(key, dest("10.244.0.3:80", 3)))...)
	b.must(op(kernel.Update, behind(key, dest("10.244.0.2:80", 0))))
	holds(b, "after an edit", observed(plain(key), dest("10.244.0.1:80", 1), dest("10.244.0.2:80", 0),
		dest("10.244.0.3:80", 3)), b.read().Servers[key])
	b.must(op(kernel.Delete, behind(key, dest("10.244.0.1:80", 1))))
	holds(b, "after a delete", observed(plain(key), dest("10.244.0.2:80", 0), dest("10.244.0.3:80", 3)),
		b.read().Servers[key])
	b.must(op(kernel.Create, behind(key, dest("10.244.0.1:80", 5))))
	holds(b, "after recreating the destination", observed(plain(key), dest("10.244.0.1:80", 5), dest("10.244.0.2:80", 0),
		dest("10.244.0.3:80", 3)), b.read().Servers[key])
}

func destinationRefusals(b *bench) {
	v4, v6 := tcp("10.96.0.1:80"), tcp("[fd00:10:96::1]:80")
	first := behind(v4, dest("10.244.0.1:80", 1))
	b.refused(kernel.ErrNotFound, op(kernel.Create, first), op(kernel.Update, first))
	b.must(creates(plain(v4), plain(v6), first)...)
	b.refused(kernel.ErrExists, op(kernel.Create, behind(v4, dest("10.244.0.1:80", 2))))
	b.exists(op(kernel.Create, first))
	b.refused(kernel.ErrNotFound, op(kernel.Update, behind(v4, dest("10.244.0.1:81", 2))))
	b.refused(nil, ops(kernel.Update, behind(v4, dest("[fd00:10:244::1]:80", 1)), behind(v6, dest("10.244.0.1:80", 1)))...)
	b.must(op(kernel.Delete, behind(v4, dest("[fd00:10:244::1]:80", 1))))
	b.refused(nil, creates(
		behind(v4, dest("[fd00:10:244::1]:80", 1)),
		behind(v6, dest("10.244.0.1:80", 1)),
		behind(v4, dest("10.244.0.2:80", math.MaxInt32+1)),
		behind(v4, dest("224.0.0.1:80", 1)),
		behind(v4, dest("0.0.0.0:80", 1)),
		behind(v4, dest("255.255.255.255:80", 1)),
		behind(v6, dest("[::]:80", 1)),
		behind(v6, dest("[ff02::1]:80", 1)),
		behind(v6, dest("[fe80::1]:80", 1)),
	)...)
}

func lookup(b *bench) {
	there, other, absent := tcp("10.96.0.1:80"), tcp("[fd00:10:96::1]:80"), key("10.96.0.1:80", inet.UDP)
	b.must(creates(plain(there), behind(there, dest("10.244.0.2:80", 2)), behind(there, dest("10.244.0.1:80", 1)),
		persistent(plain(other), 60, 64))...)
	ask := func(keys ...kernel.ServerKey) map[kernel.ServerKey]kernel.ObservedServer {
		found, err := b.Lookup(context.Background(), keys)
		if err != nil {
			b.Fatalf("lookup: %v", err)
		}
		return found
	}
	holds(b, "nothing", nil, ask())
	holds(b, "absent", nil, ask(absent))
	holds(b, "some servers", map[kernel.ServerKey]kernel.ObservedServer{
		there: observed(plain(there), dest("10.244.0.1:80", 1), dest("10.244.0.2:80", 2)),
		other: observed(persistent(plain(other), 60, 64)),
	}, ask(absent, there, other))
}

func manyServers(b *bench) {
	const servers, destinations = 2000, 5
	want := map[kernel.ServerKey]kernel.ObservedServer{}
	var all []kernel.Op
	for i := range servers {
		s := plain(kernel.ServerKey{Addr: netip.AddrPortFrom(ip4(100, i), uint16(1000+i)), Protocol: inet.TCP})
		all = append(all, op(kernel.Create, s))
		var dests []kernel.Destination
		for j := range destinations {
			d := kernel.Destination{Addr: netip.AddrPortFrom(ip4(byte(200+j), i), 8080), Weight: uint32(i * j)}
			dests = append(dests, d)
			all = append(all, op(kernel.Create, behind(s.Key, d)))
		}
		want[s.Key] = observed(s, dests...)
	}
	b.must(all...)
	holds(b, "servers", want, b.read().Servers)
	var gone []kernel.Op
	for key := range want {
		gone = append(gone, op(kernel.Delete, plain(key)))
	}
	b.must(gone...)
	holds(b, "servers after all were deleted", nil, b.read().Servers)
}

func foreignServers(b *bench) {
	theirs, ours := plain(tcp("192.0.2.1:80")), plain(tcp("10.96.0.1:80"))
	theirs.Scheduler = "wlc"
	b.byAdmin(b.Admin.AddServer(theirs, dest("192.0.2.7:80", 3)))
	b.must(op(kernel.Create, ours))
	holds(b, "servers", map[kernel.ServerKey]kernel.ObservedServer{
		theirs.Key: observed(theirs, dest("192.0.2.7:80", 3)), ours.Key: observed(ours),
	}, b.read().Servers)
	b.refused(kernel.ErrExists, op(kernel.Create, theirs))
	b.byAdmin(b.Admin.DelServer(theirs.Key))
	b.refused(kernel.ErrNotFound, op(kernel.Update, theirs))
	b.byAdmin(b.Admin.ClearServers())
	holds(b, "servers after ipvsadm -C", nil, b.read().Servers)
}

// Only Lookup returns connection limits.
func destinationLimits(b *bench) {
	key := tcp("10.96.0.1:80")
	free, limited := dest("10.244.0.1:80", 1), dest("10.244.0.2:80", 1)
	limited.Upper, limited.Lower = 20, 10
	b.must(creates(plain(key), behind(key, free), behind(key, limited))...)
	shows := func(what string, want ...kernel.Destination) {
		b.Helper()
		have, err := b.Lookup(context.Background(), []kernel.ServerKey{key})
		if err != nil {
			b.Fatal(err)
		}
		holds(b, what, observed(plain(key), want...), have[key])
		for i := range want {
			want[i].Upper, want[i].Lower = 0, 0
		}
		holds(b, what+", read with everything", observed(plain(key), want...), b.read().Servers[key])
	}
	shows("limits", free, limited)
	limited.Upper, limited.Lower = 30, 0
	b.must(op(kernel.Update, behind(key, limited)))
	shows("one limit, a higher limit", free, limited)
	uneven := limited
	uneven.Lower = 31
	b.refused(nil, op(kernel.Update, behind(key, uneven)))
	shows("after a refusal", free, limited)
	limited.Upper, limited.Lower = 1<<31-1, 1<<31-2
	b.must(op(kernel.Update, behind(key, limited)))
	shows("the highest limits", free, limited)
	b.must(op(kernel.Update, behind(key, dest("10.244.0.2:80", 1))))
	shows("without limits", free, dest("10.244.0.2:80", 1))
}
