package balance

import (
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/wire"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

var shop = kernel.ServerKey{Addr: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: inet.TCP}

func endpoint(n int, weight uint32) kernel.Destination {
	return kernel.Destination{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(n >> 8), byte(n)}), 8080), Weight: weight}
}

func endpoints(n int, weight uint32) (all []kernel.Destination) {
	for i := range n {
		all = append(all, endpoint(i+1, weight))
	}
	return all
}

func server(persistent bool) kernel.Server {
	s := kernel.Server{Key: shop, Scheduler: "rr", MaskBits: 32}
	if persistent {
		s.Flags, s.Timeout = kernel.FlagPersistent, 10800
	}
	return s
}

// written counts the element operations of a change.
func written(t *testing.T, from *frontend, op kernel.Op) (n int, to *frontend) {
	t.Helper()
	b := &Balancer{known: &content{frontends: map[kernel.ServerKey]*found{shop: {frontend: from}}, chains: comments{}}}
	errs := make([]error, 1)
	changes, _ := b.prepare([]kernel.Op{op}, []int{0}, errs)
	if errs[0] != nil || len(changes) != 1 {
		t.Fatalf("%s: %v", op, errs[0])
	}
	const elements = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWSETELEM
	for _, r := range slices.Concat(changes[0].units(b.known.chains)...) {
		if r.Type < elements {
			continue // the request is about chains or rules
		}
		err := wire.EachElement(r.Payload, func(e wire.Element) error {
			if n++; e.Chain != "" && e.Chain != wire.Nowhere && !from.hasAffinity() {
				t.Errorf("%s: an element leads to %s, so the kernel checks all such elements for loops", op, e.Chain)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return n, changes[0].to
}

func TestCostOfAnEndpoint(t *testing.T) {
	for _, c := range []struct {
		persistent  bool
		add, remove int
	}{{false, 3, 5}, {true, 3, 5}} {
		for _, size := range []int{2, 10, 1000} {
			from := (&frontend{}).with(server(c.persistent), endpoints(size, 100))
			added := kernel.ServerDestination{Server: shop, Destination: endpoint(size+1, 100)}
			if n, _ := written(t, from, kernel.Op{Verb: kernel.Create, Object: added}); n != c.add {
				t.Errorf("affinity %t: %d operations to add an endpoint to %d existing ones, want %d", c.persistent, n, size, c.add)
			}
			first := kernel.ServerDestination{Server: shop, Destination: endpoint(1, 100)}
			if n, _ := written(t, from, kernel.Op{Verb: kernel.Delete, Object: first}); n != c.remove {
				t.Errorf("affinity %t: %d operations to remove one of %d endpoints, want %d", c.persistent, n, size, c.remove)
			}
			first.Weight = 0
			if n, _ := written(t, from, kernel.Op{Verb: kernel.Update, Object: first}); n > 10 {
				t.Errorf("affinity %t: %d operations to drain one of %d endpoints, want at most 10", c.persistent, n, size)
			}
		}
	}
}

func TestUnchangedSlotsAreNotEncoded(t *testing.T) {
	all := endpoints(1001, 100)
	from := (&frontend{}).with(server(false), all[:1000])
	change := newChange(shop, &found{frontend: from})
	change.to = from.with(server(false), all[1:])
	if n := testing.AllocsPerRun(1, func() { change.units(comments{}) }); n > 100 {
		t.Errorf("replacing one of 1,000 endpoints takes %.0f allocations", n)
	}
}

// TestUnits: a unit that deletes an element for another one also adds it. Otherwise, a transaction could end between the two.
func TestUnits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		frontend := func(name string) *frontend {
			var dests []kernel.Destination
			for _, n := range rapid.SliceOfNDistinct(rapid.IntRange(1, 2000), 0, 1000, rapid.ID[int]).Draw(t, name) {
				dests = append(dests, endpoint(n, 1+uint32(n)%3))
			}
			return (&frontend{}).with(server(rapid.Bool().Draw(t, name+" has affinity")), dests)
		}
		w := newChange(shop, &found{frontend: frontend("before")})
		w.to = frontend("after")
		w.to.gone, w.to.forgetful = nil, false
		added, deleted := map[entry]int{}, map[entry]int{}
		for i, unit := range w.units(comments{}) {
			for _, r := range unit {
				set := nameOfSet(r)
				_ = wire.EachElement(r.Payload, func(e wire.Element) error {
					key := entry{set, wire.Element{Key: e.Key}}
					if r.Type&0xff == unix.NFT_MSG_NEWSETELEM {
						added[key] = i
					} else {
						deleted[key] = i
					}
					return nil
				})
			}
		}
		for key, i := range deleted {
			if at, again := added[key]; again && at != i {
				t.Fatalf("an element of %s is deleted in unit %d and added in unit %d", key.set, i, at)
			}
		}
	})
}

func nameOfSet(r nlbatch.Request) (name string) {
	_ = nlbatch.EachAttr(r.Payload[4:], func(typ uint16, v []byte) error {
		if typ == unix.NFTA_SET_ELEM_LIST_SET {
			name = nlbatch.String(v)
		}
		return nil
	})
	return name
}

func TestGone(t *testing.T) {
	all := endpoints(maxGone+3, 1)
	f := (&frontend{}).with(server(true), all[:3])
	f = f.with(server(true), all[1:3])
	f = f.with(server(true), all[2:4])
	if want := []netip.AddrPort{all[0].Addr, all[1].Addr}; !slices.Equal(f.gone, want) {
		t.Errorf("gone: %v, want %v", f.gone, want)
	}
	if read := goneIn(f.affinity().chains()[1].comments()); !slices.Equal(read, f.gone) {
		t.Errorf("read the removed endpoints %v from the chain", read)
	}
	if f = f.with(server(true), all[:1]); slices.Contains(f.gone, all[0].Addr) || f.forgetful {
		t.Errorf("an endpoint that was added again is still in gone: %v", f.gone)
	}
	if f = f.with(server(true), all).with(server(true), all[:1]); len(f.gone) > 0 || !f.forgetful {
		t.Errorf("%d gone, forgetful %t", len(f.gone), f.forgetful)
	}
	if f = f.with(server(true), all[:2]); f.forgetful {
		t.Error("the frontend is still forgetful")
	}
	if f = f.with(server(false), all[2:]); len(f.gone) > 0 {
		t.Errorf("without affinity, gone is %v", f.gone)
	}
}

func TestSlots(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := &frontend{}
		weights := rapid.OneOf(rapid.SampledFrom([]uint32{0, 1, 1, 1, 100}), rapid.Uint32Range(0, 1<<31-1))
		for range rapid.IntRange(1, 5).Draw(t, "changes") {
			var dests []kernel.Destination
			total := uint64(0)
			for _, n := range rapid.SliceOfNDistinct(rapid.IntRange(1, 400), 0, 40, rapid.ID[int]).Draw(t, "endpoints") {
				d := endpoint(n, weights.Draw(t, "weight"))
				dests, total = append(dests, d), total+uint64(d.Weight)
			}
			slices.SortFunc(dests, kernel.Destination.Compare)
			f = f.with(server(true), dests)
			if !f.hasRightSlots() || !slices.Equal(f.destinations(), dests) {
				t.Fatalf("destinations %v became slots %v and idle %v", dests, f.slots, f.idle)
			}
			count := map[netip.AddrPort]int{}
			for _, d := range f.slots {
				count[d.Addr]++
			}
			for _, d := range dests {
				share := float64(d.Weight) / float64(max(total, 1))
				slots := float64(count[d.Addr]) / float64(max(len(f.slots), 1))
				if d.Weight > 0 && count[d.Addr] == 0 || d.Weight == 0 && count[d.Addr] > 0 || slots > share+0.2 || slots < share-0.2 {
					t.Fatalf("%s has %d of %d slots for %.3f of the weight", d, count[d.Addr], len(f.slots), share)
				}
			}
		}
	})
}

// TestShares: for all weights, the error of each share is at most an eighth of the share plus one slot.
func TestShares(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var dests []kernel.Destination
		total := 0.0
		for i, bits := range rapid.SliceOfN(rapid.IntRange(1, 32), 1, 60).Draw(t, "bits") {
			dests = append(dests, endpoint(i+1, uint32(rapid.Uint64Range(1, 1<<bits-1).Draw(t, "weight"))))
			total += float64(dests[i].Weight)
		}
		counts, most := apportion(dests), float64(mostSlots(len(dests)))
		slots := 0.0
		for _, n := range counts {
			slots += float64(n)
		}
		for i, n := range counts {
			if share := float64(dests[i].Weight) / total; math.Abs(float64(n)/slots-share) > share/8+1/most {
				t.Fatalf("%v have %v slots", dests, counts)
			}
		}
		if slots > most+float64(len(dests)) {
			t.Fatalf("got %v slots for %d endpoints", slots, len(dests))
		}
	})
}

func TestSharesAreExact(t *testing.T) {
	for _, c := range []struct {
		weights []uint32
		want    []int
	}{
		{[]uint32{1, 1, 1}, []int{1, 1, 1}}, {[]uint32{100, 100}, []int{1, 1}}, {[]uint32{3, 1}, []int{3, 1}}, {[]uint32{100, 50}, []int{2, 1}}, {[]uint32{99, 1}, []int{99, 1}},
		{[]uint32{1 << 30, 1}, []int{4096, 1}}, {[]uint32{1 << 30, 1<<30 - 1}, []int{128, 128}},
	} {
		var dests []kernel.Destination
		for i, w := range c.weights {
			dests = append(dests, endpoint(i+1, w))
		}
		if have := apportion(dests); !slices.Equal(have, c.want) {
			t.Errorf("weights %v: %v slots, want %v", c.weights, have, c.want)
		}
	}
}

func TestNamesOfChains(t *testing.T) {
	other := map[inet.Family]inet.Family{inet.IPv4: inet.IPv6, inet.IPv6: inet.IPv4}
	wide := kernel.ServerKey{Addr: netip.MustParseAddrPort("[fd00::1]:0"), Protocol: inet.SCTP}
	for name, f := range map[string]inet.Family{
		picker{family: inet.IPv4, slots: 4}.name(): inet.IPv4, picker{family: inet.IPv4, allPorts: true}.name(): inet.IPv4,
		picker{family: inet.IPv6, slots: 14}.name(): inet.IPv6, affinity{key: shop}.name(): inet.IPv4, affinity{key: wide}.name(): inet.IPv6,
		Entrance(inet.IPv6): inet.IPv6,
	} {
		if strings.HasSuffix(name, "-4") || strings.HasSuffix(name, "-6") {
			t.Errorf("%s is mistaken for a chain of rules", name)
		}
		if !ownChain(f, name) || ownChain(other[f], name) {
			t.Errorf("%s is not recognized as a balancing chain of its family", name)
		}
	}
	if ownChain(inet.IPv4, "nat-KUBE-SERVICES-4") {
		t.Error("a chain of rules is mistaken for a balancing chain")
	}
}
