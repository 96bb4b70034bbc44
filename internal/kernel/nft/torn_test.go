package nft

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/balance"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/wire"
)

func numbered(n int) kernel.ServerKey {
	return kernel.ServerKey{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 97, byte(n >> 8), byte(n)}), 80), Protocol: inet.TCP}
}

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
	other, err := New(inet.Families, nil)
	labtest.Opened(t, other, err)
	b.conn.Meanwhile = kerneltest.Disturber(t, other.Apply, toggled...)()
	_, members, err := b.ListSets(t.Context(), "S")
	if err != nil {
		t.Fatal(err)
	}
	unseen := slices.DeleteFunc(all, func(m kernel.Member) bool {
		_, seen := members["S"][m.Element]
		return seen
	})
	if t.Logf("the list lacks %d of %d members", len(unseen), many); len(unseen) == 0 {
		t.Error("the list is complete, so this test proves nothing")
	}
	gone := kernel.Member{Set: "S", Element: kernel.Element{Addr: netip.MustParseAddr("198.51.100.1")}}
	found, err := b.LookupMembers(t.Context(), append(unseen, gone, kernel.Member{Set: "none", Element: gone.Element}))
	if _, exists := found[gone]; err != nil || exists || len(found) != len(unseen) {
		t.Errorf("found %d of %d, %t: %v", len(found), len(unseen), exists, err)
	}
	for range 250 {
		b.conn.Meanwhile() // the other program stops writing
	}
	if _, members, err := b.ReadSets(t.Context(), "S"); err != nil || len(members["S"]) < many {
		t.Errorf("read %d of %d members: %v", len(members["S"]), many, err)
	}
}

func TestRulesWhileOthersWrite(t *testing.T) {
	b := open(t)
	b.WithBalancing()
	other, err := balance.New(inet.Families)
	labtest.Opened(t, other, err)
	set := kernel.Set{Name: "S", Type: kernel.HashIPPort, Family: inet.IPv4, MaxElem: 10}
	rules := everything(inet.IPv4, set)
	apply(t, b, kernel.Op{Verb: kernel.Create, Object: set}, kernel.Op{Verb: kernel.Ensure, Object: rules})
	for n := range 500 {
		serve(t, other, numbered(n), kernel.Destination{Addr: numbered(1).Addr, Weight: 1})
	}
	rulesOnly, err := New(inet.Families, chainsOfEverything)
	labtest.Opened(t, rulesOnly, err)
	summaries, err := NewSummarizer(inet.Families, chainsOfEverything, "S", wire.NewWrites())
	labtest.Opened(t, summaries, err)
	var toggled []kernel.Object
	for n := range 10 {
		toggled = append(toggled, kernel.ServerDestination{Server: numbered(0), Destination: kernel.Destination{Addr: numbered(n + 2).Addr, Weight: 1}})
	}
	disturb := kerneltest.Disturber(t, other.Apply, toggled...)
	rulesOnly.conn.Meanwhile = disturb()
	views, err := rulesOnly.Read(t.Context())
	if err != nil || len(views[inet.IPv4].Lacks(rules.View())) > 0 {
		t.Errorf("lacks %v: %v", views[inet.IPv4].Lacks(rules.View()), err)
	}
	calm, calmRules, err := summaries.Summarize(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	summaries.conn.Meanwhile = disturb()
	summaries.conn.Meanwhile() // Summarize reads only after a change
	sets, sums, err := summaries.Summarize(t.Context())
	now := sets["S"]
	if now.Members == kernel.Uncounted { // if the kernel sends no counts, the next count must wait
		now.Members = calm["S"].Members
	}
	if err != nil || now != calm["S"] || sums[inet.IPv4] != calmRules[inet.IPv4] {
		t.Errorf("sets were %+v, then %+v; rules were %v, then %v; error %v", calm, sets, calmRules, sums, err)
	}
	rulesOnly.conn.Meanwhile = disturb()
	if _, err := rulesOnly.List(t.Context()); err != nil {
		t.Error(err)
	}
}
