package balance

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

func TestBalancerRepairs(t *testing.T) {
	for _, c := range []struct {
		what, command string
		serving       int // endpoints that the repair of the virtual server alone must keep
	}{
		{"a slot", "delete element inet kube-ipvs slots4 { 10.96.0.1 . tcp . 80 . 1 }", 2},
		{"the front", "delete element inet kube-ipvs slot-numbers4 { 10.96.0.1 . tcp . 80 }", 0},
		{"the picker", "flush map inet kube-ipvs pickers4", 3},
		{"all slots", "flush map inet kube-ipvs slots4", 0},
		{"the chain", "flush chain inet kube-ipvs pick4.3", 3},
		{"the entrance", "flush chain inet kube-ipvs balance4", 3},
		{"a rule in the entrance", "insert rule inet kube-ipvs balance4 counter", 3},
		{"a rule in the picker", "insert rule inet kube-ipvs pick4.3 counter", 3},
		{"a huge number", "delete element inet kube-ipvs slot-numbers4 { 10.96.0.1 . tcp . 80 }; " +
			`add element inet kube-ipvs slot-numbers4 { 10.96.0.1 . tcp . 80 comment "rr 0 0 32 2147483648 0" : 0 . 3 }`, 3},
	} {
		t.Run(c.what, func(t *testing.T) {
			b := openBalancer(t)
			f := (&frontend{}).with(server(false), endpoints(3, 1))
			ops := []kernel.Op{{Verb: kernel.Create, Object: f.Server}}
			for _, d := range endpoints(3, 1) {
				ops = append(ops, kernel.Op{Verb: kernel.Create, Object: kernel.ServerDestination{Server: shop, Destination: d}})
			}
			mustApply(t, b, ops...)
			labtest.Run(t, "nft", c.command)
			have := mustRead(t, b)[shop]
			if have.SameConfig(f.observed(false)) {
				t.Fatal("not noticed")
			}
			if have.Key == shop {
				mustApply(t, b, kernel.Op{Verb: kernel.Update, Object: f.Server})
				ops = ops[1:]
			}
			have = mustRead(t, b)[shop]
			if len(have.Destinations) != c.serving {
				t.Errorf("connections reach %d endpoints before the next operation, want %d", len(have.Destinations), c.serving)
			}
			for _, op := range ops {
				d, isDest := op.Object.(kernel.ServerDestination)
				if _, stands := have.Destination(d.Addr); have.Key != shop || isDest && !stands {
					mustApply(t, b, op)
				}
			}
			if have := mustRead(t, b)[shop]; !have.SameConfig(f.observed(false)) {
				t.Errorf("not repaired: %v", have)
			}
			mustApply(t, b, kernel.Op{Verb: kernel.Delete, Object: f.Server})
			if left, err := b.conn.Table(t.Context()); err != nil || left.Exists {
				t.Errorf("the table still exists: %v", err)
			}
		})
	}
}

func TestOneOfABatchIsRefused(t *testing.T) {
	b := openBalancer(t)
	create := func(port uint16) kernel.Op {
		s := server(false)
		s.Key.Addr = netip.AddrPortFrom(s.Key.Addr.Addr(), port)
		return kernel.Op{Verb: kernel.Create, Object: s}
	}
	mustApply(t, b, create(1)) // now the balancer knows the kernel state
	other := create(3)
	theirs := other.Object.(kernel.Server)
	theirs.Scheduler = "wrr"
	other.Object = theirs
	elsewhere, err := New(inet.Families)
	labtest.Opened(t, elsewhere, err)
	mustApply(t, elsewhere, other)
	before := b.Stats().Dumps
	errs := b.Apply(t.Context(), []kernel.Op{create(2), create(3), create(4)})
	if lists := b.Stats().Dumps - before; lists > 11 {
		t.Errorf("%d lists, but to read everything once takes 11", lists)
	}
	if errs[0] != nil || !errors.Is(errs[1], kernel.ErrExists) || errs[2] != nil {
		t.Errorf("got %v", errs)
	}
	if have := mustRead(t, b); len(have) != 4 {
		t.Errorf("%d virtual servers", len(have))
	}
}

func mustApply(t *testing.T, b *Balancer, ops ...kernel.Op) {
	t.Helper()
	for i, err := range b.Apply(t.Context(), ops) {
		if err != nil {
			t.Fatalf("%s: %v", ops[i], err)
		}
	}
}

func mustRead(t *testing.T, b *Balancer) map[kernel.ServerKey]kernel.ObservedServer {
	t.Helper()
	all, err := b.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func numbered(n int) kernel.ServerKey {
	return kernel.ServerKey{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 97, byte(n >> 8), byte(n)}), 80), Protocol: inet.TCP}
}

func ofShop() (all []kernel.Object) {
	for _, d := range endpoints(10, 1) {
		all = append(all, kernel.ServerDestination{Server: shop, Destination: d})
	}
	return all
}

func TestReadWhileOthersWrite(t *testing.T) {
	const many = 400
	b := openBalancer(t)
	var creates, updates []kernel.Op
	for n := range many {
		s := server(n%100 == 0)
		s.Key = numbered(n)
		creates = append(creates, kernel.Op{Verb: kernel.Create, Object: s})
		for _, d := range endpoints(10, 1) {
			creates = append(creates, kernel.Op{Verb: kernel.Create, Object: kernel.ServerDestination{Server: s.Key, Destination: d}})
		}
		updates = append(updates, kernel.Op{Verb: kernel.Create, Object: kernel.ServerDestination{Server: s.Key, Destination: endpoint(11, 1)}})
	}
	mustApply(t, b, creates...)
	late, err := New(inet.Families)
	labtest.Opened(t, late, err)
	other, err := New(inet.Families)
	labtest.Opened(t, other, err)
	mustApply(t, other, kernel.Op{Verb: kernel.Create, Object: server(false)})

	disturb := kerneltest.Disturber(t, other.Apply, ofShop()...)
	b.conn.Meanwhile = disturb()
	listed, err := b.readLists(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	whole := 0
	for n := range many {
		if f := listed.frontends[numbered(n)]; f != nil && f.frontend != nil {
			whole++
		}
	}
	if t.Logf("%d of %d virtual servers are complete in a list", whole, many); whole == many {
		t.Error("the list is complete, so this test proves nothing")
	}
	b.conn.Meanwhile = disturb()
	read := mustRead(t, b)
	found, err := b.Lookup(t.Context(), keysOf(creates))
	if err != nil {
		t.Fatal(err)
	}
	for n := range many {
		have, seen := read[numbered(n)]
		if !seen {
			have = found[numbered(n)] // the caller looks up what should exist
		}
		if have.Scheduler != "rr" || len(have.Destinations) != 10 {
			t.Errorf("%s: %v with %d destinations", numbered(n), have.Server, len(have.Destinations))
		}
	}
	late.conn.Meanwhile = disturb()
	mustApply(t, late, updates...)
}
