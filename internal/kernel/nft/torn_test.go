package nft

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

// numbered is a virtual server that does not change in these tests.
func numbered(n int) kernel.ServerKey {
	return kernel.ServerKey{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 97, byte(n >> 8), byte(n)}), 80), Protocol: inet.TCP}
}

// disturber returns a function that writes as another program between the messages of the next lists: it adds and removes these endpoints
// of shop, or members of a set.
func disturber(t *testing.T, toggled ...kernel.Object) func(*Backend) {
	t.Helper()
	other, err := NewBalancer(inet.Families)
	labtest.Opened(t, other, err)
	write := other.Apply
	if _, member := toggled[0].(kernel.Member); member {
		write = other.Backend.Apply
	} else {
		mustApply(t, other, kernel.Op{Verb: kernel.Create, Object: server(false)})
	}
	n := 0
	return func(b *Backend) {
		last := n + 300 // the kernel does not finish a list while the number of elements changes
		b.meanwhile = func() {
			if n >= last {
				return
			}
			n++
			verb := kernel.Create
			if n%2 == 0 {
				verb = kernel.Delete
			}
			var ops []kernel.Op
			for _, o := range toggled {
				ops = append(ops, kernel.Op{Verb: verb, Object: o})
			}
			if err := errors.Join(write(t.Context(), ops)...); err != nil {
				t.Error(err)
			}
		}
	}
}

func ofShop() (all []kernel.Object) {
	for _, d := range endpoints(10, 1) {
		all = append(all, kernel.ServerDestination{Server: shop, Destination: d})
	}
	return all
}

// While another program writes, a list of elements can miss elements that do not change. A Balancer looks these up, so its reads and writes
// are still correct.
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
	late, err := NewBalancer(inet.Families)
	labtest.Opened(t, late, err)

	disturb := disturber(t, ofShop()...)
	disturb(b.Backend)
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
	if t.Logf("%d of %d virtual servers look whole in a list", whole, many); whole == many {
		t.Error("the list lacks nothing, so this test proves nothing")
	}
	disturb(b.Backend)
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
	disturb(late.Backend)
	mustApply(t, late, updates...)
}

// The same for sets. Here, the caller knows the members that should exist.
func TestMembersWhileOthersWrite(t *testing.T) {
	const many = 8_000
	b := open(t)
	set := kernel.Set{Name: "S", Type: kernel.HashIP, Family: inet.IPv4, MaxElem: 2 * many}
	ops, all := []kernel.Op{{Verb: kernel.Create, Object: set}}, []kernel.Member{}
	for n := range many {
		m := kernel.Member{Set: set.Name, Element: kernel.Element{Addr: numbered(n).Addr.Addr()}}
		ops, all = append(ops, kernel.Op{Verb: kernel.Create, Object: m}), append(all, m)
	}
	apply(t, b, ops...)
	var toggled []kernel.Object
	for n := range 20 {
		toggled = append(toggled, kernel.Member{Set: "S", Element: kernel.Element{Addr: netip.AddrFrom4([4]byte{203, 0, 113, byte(n)})}})
	}
	disturb := disturber(t, toggled...)
	disturb(b)
	_, members, err := b.ListSets(t.Context(), "S")
	if err != nil {
		t.Fatal(err)
	}
	unseen := slices.DeleteFunc(all, func(m kernel.Member) bool {
		_, seen := members["S"][m.Element]
		return seen
	})
	if t.Logf("the list lacks %d of %d members", len(unseen), many); len(unseen) == 0 {
		t.Error("the list lacks nothing, so this test proves nothing")
	}
	gone := kernel.Member{Set: "S", Element: kernel.Element{Addr: netip.MustParseAddr("198.51.100.1")}}
	found, err := b.LookupMembers(t.Context(), append(unseen, gone, kernel.Member{Set: "none", Element: gone.Element}))
	if _, exists := found[gone]; err != nil || exists || len(found) != len(unseen) {
		t.Errorf("found %d of %d, %t: %v", len(found), len(unseen), exists, err)
	}
	for range 250 {
		b.meanwhile() // the other program stops soon
	}
	if _, members, err := b.ReadSets(t.Context(), "S"); err != nil || len(members["S"]) < many {
		t.Errorf("read %d of %d members: %v", len(members["S"]), many, err)
	}
}

// Reads of the rules and of the summary succeed while other programs write, even if a Balancer has many chains.
func TestRulesWhileOthersWrite(t *testing.T) {
	b := openBalancer(t)
	set := kernel.Set{Name: "S", Type: kernel.HashIPPort, Family: inet.IPv4, MaxElem: 10}
	rules := everything(inet.IPv4, set)
	apply(t, b.Backend, kernel.Op{Verb: kernel.Create, Object: set}, kernel.Op{Verb: kernel.Ensure, Object: rules})
	for n := range 500 {
		mustApply(t, b, sticky(numbered(n), 32, endpoint(1, 1))...)
	}
	rulesOnly, err := New(inet.Families, chainsOfEverything)
	labtest.Opened(t, rulesOnly, err)
	summaries, err := NewSummarizer(inet.Families, chainsOfEverything, "S")
	labtest.Opened(t, summaries, err)
	disturb := disturber(t, ofShop()...)
	disturb(rulesOnly)
	views, err := rulesOnly.Read(t.Context())
	if err != nil || len(views[inet.IPv4].Lacks(rules.View())) > 0 {
		t.Errorf("lacks %v: %v", views[inet.IPv4].Lacks(rules.View()), err)
	}
	calm, calmRules, err := summaries.Summarize(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	disturb(summaries.Backend)
	summaries.meanwhile() // a change makes it read
	sets, sums, err := summaries.Summarize(t.Context())
	now := sets["S"]
	if now.Members == kernel.Uncounted { // without counts from the kernel, the next count must wait
		now.Members = calm["S"].Members
	}
	if err != nil || now != calm["S"] || sums[inet.IPv4] != calmRules[inet.IPv4] {
		t.Errorf("%+v, then %+v; rules %v, then %v: %v", calm, sets, calmRules, sums, err)
	}
	disturb(rulesOnly)
	if _, err := rulesOnly.List(t.Context()); err != nil {
		t.Error(err)
	}
}

// Without element counts from the kernel, counting takes at most a hundredth of the time.
func TestCountingIsBounded(t *testing.T) {
	b := open(t)
	apply(t, b, kernel.Op{Verb: kernel.Create, Object: kernel.Set{Name: "S", Type: kernel.HashIP, Family: inet.IPv4, MaxElem: 10}},
		kernel.Op{Verb: kernel.Create, Object: kernel.Member{Set: "S", Element: kernel.Element{Addr: shop.Addr.Addr()}}})
	for wanted, want := range map[bool]int{true: 1, false: kernel.Uncounted} {
		if n, err := b.count(t.Context(), "S", nil, wanted); err != nil || n != want {
			t.Errorf("wanted %t: %d, %v", wanted, n, err)
		}
	}
	began, later := time.Unix(1000, 0), time.Unix(1000, 500)
	for took, want := range map[time.Duration]time.Time{countFree - 1: {}, 20 * time.Millisecond: began.Add(2 * time.Second)} {
		if again := countAgain(began, took, time.Time{}); !again.Equal(want) {
			t.Errorf("after %s: at %s", took, again)
		}
	}
	if again := countAgain(began, time.Second, later); again != later {
		t.Errorf("nothing was counted, and again at %s", again)
	}
}
