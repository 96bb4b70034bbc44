package nft

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/balance"
)

var opaque = cmpopts.EquateComparable(netip.Addr{})

func open(t *testing.T) *Backend {
	t.Helper()
	labtest.NetNSNoIPVS(t)
	b, err := New(inet.Families, chainsOfEverything)
	labtest.Opened(t, b, err)
	return b
}

type applier interface {
	Apply(context.Context, []kernel.Op) []error
}

func apply(t *testing.T, b applier, ops ...kernel.Op) {
	t.Helper()
	for i, err := range b.Apply(context.Background(), ops) {
		if err != nil {
			t.Fatalf("%s: %v", ops[i], err)
		}
	}
}

// everything returns a ruleset with every condition and verdict, in chains where the kernel accepts them.
func everything(f inet.Family, set kernel.Set) kernel.Ruleset {
	r := func(v kernel.Verdict, cs ...kernel.Condition) kernel.Rule {
		return kernel.Rule{Why: fmt.Sprint(cs), Conditions: cs, Verdict: v}
	}
	pods, reject := netip.MustParsePrefix("10.244.0.0/16"), kernel.ProtocolUnreachable
	if f == inet.IPv6 {
		pods, reject = netip.MustParsePrefix("fd00:10:244::/56"), kernel.PortUnreachable6
	}
	inSet := kernel.InSet{Set: set.Name, Key: kernel.KeyDestinationPort}
	notInSet := inSet
	notInSet.Not = true
	chain := func(table, name string, rules ...kernel.Rule) kernel.Chain {
		return kernel.Chain{ChainID: kernel.ChainID{Table: table, Chain: name}, Rules: rules}
	}
	jump := func(table, from, to string) kernel.Jump {
		return kernel.Jump{ChainID: kernel.ChainID{Table: table, Chain: from}, Rule: r(kernel.JumpTo(to), kernel.Established{Not: true})}
	}
	return kernel.Ruleset{
		Family: f,
		Chains: []kernel.Chain{
			chain("nat", "SERVICES", r(kernel.Accept, inSet), r(kernel.SetMark(0x4000), notInSet), r(kernel.FlipMark(0x4000)), r(kernel.JumpTo("MORE"))),
			chain("nat", "MORE", r(kernel.Return, kernel.ToThisNode{}), r(kernel.Return, kernel.Arrives{Interface: "cbr0"}),
				r(kernel.Accept, kernel.Arrives{Interface: "veth", Prefix: true})),
			chain("nat", "POST", r(kernel.Masquerade{}, kernel.From{Prefix: pods}), r(kernel.Masquerade{RandomPort: true}, kernel.Marked{Bits: 1}),
				r(kernel.Return, kernel.Marked{Bits: 1, Not: true}), r(kernel.Return, kernel.To{Prefix: pods})),
			chain("filter", "IN", r(kernel.Return, kernel.Established{}), r(kernel.Drop, kernel.Invalid{}), r(kernel.Return, kernel.Ping{Family: f}),
				r(reject, kernel.OfProtocol{Protocol: inet.SCTP}), r(kernel.Drop)),
		},
		Jumps: []kernel.Jump{jump("nat", "PREROUTING", "SERVICES"), jump("nat", "OUTPUT", "SERVICES"), jump("nat", "POSTROUTING", "POST"), jump("filter", "INPUT", "IN")},
	}
}

var chainsOfEverything = []kernel.ChainID{{Table: "nat", Chain: "SERVICES"}, {Table: "nat", Chain: "MORE"}, {Table: "nat", Chain: "POST"}, {Table: "filter", Chain: "IN"}}

func TestRulesAreWhatNFTShows(t *testing.T) {
	b := open(t)
	for _, f := range inet.Families {
		set := kernel.Set{Name: fmt.Sprintf("S%d", f), Type: kernel.HashIPPort, Family: f, MaxElem: 10}
		apply(t, b, kernel.Op{Verb: kernel.Create, Object: set}, kernel.Op{Verb: kernel.Ensure, Object: everything(f, set)})
		views, err := b.Read(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(everything(f, set).View(), views[f], cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: -want +have\n%s", f, diff)
		}
	}
	listings, err := b.List(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range inet.Families {
		rules := everything(f, kernel.Set{Name: fmt.Sprintf("S%d", f)})
		for _, c := range rules.Chains {
			for i, r := range c.Rules {
				want := strings.Replace(r.String(), "-j ", "-m comment --comment \""+r.Comment()+"\" -j ", 1)
				if have := listings[f].Rules[c.ChainID][i].Spec; have != want {
					t.Errorf("%s %s: listed %s, want %s", f, c.ChainID, have, want)
				}
			}
		}
		for _, j := range rules.Jumps {
			if have := listings[f].Rules[j.ChainID][0].Spec; !strings.HasSuffix(have, "-j "+string(j.Verdict.(kernel.JumpTo))) {
				t.Errorf("%s %s: listed %s", f, j.ChainID, have)
			}
		}
	}
	out := labtest.Run(t, "nft", "-s", "list", "table", "inet", Table)
	for _, shown := range []string{
		". meta l4proto . th dport @S4 dnat ip to", ". th dport != @S6 meta mark set meta mark | 0x00004000", "set meta mark ^ 0x00004000",
		"fib daddr type local return", `iifname "cbr0" return`, `iifname "veth*" dnat ip6 to`, "& 0xffff0000 == 0xaf40000 masquerade",
		"== 0x00000001 masquerade fully-random", "!= 0x00000001 return", "ct state established,related return", "ct state invalid drop", "meta l4proto ipv6-icmp return",
		"type nat hook prerouting priority dstnat - 1; policy accept;", "meta nfproto ipv4 ct state ! established,related jump nat-SERVICES-4",
	} {
		if !strings.Contains(out, shown) {
			t.Errorf("nft does not show %q:\n%s", shown, out)
		}
	}
}

func TestNothingIsLeft(t *testing.T) {
	b := open(t)
	set := kernel.Set{Name: "S4", Type: kernel.HashIPPort, Family: inet.IPv4, MaxElem: 10}
	rules := everything(inet.IPv4, set)
	apply(t, b, kernel.Op{Verb: kernel.Create, Object: set}, kernel.Op{Verb: kernel.Ensure, Object: rules},
		kernel.Op{Verb: kernel.Delete, Object: rules}, kernel.Op{Verb: kernel.Delete, Object: set})
	if out := labtest.Run(t, "nft", "list", "ruleset"); out != "" {
		t.Error(out)
	}
}

func TestRangeReplacesOverlapping(t *testing.T) {
	b := open(t)
	set := kernel.Set{Name: "R", Type: kernel.HashIPPortNet, Family: inet.IPv4, MaxElem: 10}
	apply(t, b, kernel.Op{Verb: kernel.Create, Object: set})
	element := func(port uint16, r string) kernel.Element {
		p := netip.MustParsePrefix(r)
		return kernel.Element{Addr: netip.MustParseAddr("203.0.113.1"), Protocol: inet.TCP, Port: port, Addr2: p.Addr(), Bits2: uint8(p.Bits())}
	}
	other := element(81, "10.1.0.0/16")
	apply(t, b, kernel.Op{Verb: kernel.Create, Object: kernel.Member{Set: "R", Element: other}})
	now := element(80, "192.0.2.0/24")
	for _, r := range []string{"10.1.0.0/16", "10.0.0.0/8", "10.1.2.0/24", "10.1.2.3/32", "10.0.0.0/8"} {
		before := now
		now = element(80, r)
		apply(t, b, kernel.Op{Verb: kernel.Create, Object: kernel.Member{Set: "R", Element: now}},
			kernel.Op{Verb: kernel.Delete, Object: kernel.Member{Set: "R", Element: before}})
		have, _, err := b.members(context.Background(), set)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(map[kernel.Element]struct{}{now: {}, other: {}}, have, opaque); diff != "" {
			t.Errorf("%s: -want +have\n%s", r, diff)
		}
	}
}

// TestStrayMembers: members that the agent could not have written neither prevent reading nor survive a replacement. Its own members do.
func TestStrayMembers(t *testing.T) {
	b := open(t)
	const prefix = "R"
	ranges := kernel.Set{Name: prefix + "-RANGES", Type: kernel.HashIPPortNet, Family: inet.IPv4, MaxElem: 10}
	ports := kernel.Set{Name: prefix + "-PORTS", Type: kernel.HashIPPort, Family: inet.IPv4, MaxElem: 10}
	ours := kernel.Member{Set: ranges.Name, Element: kernel.Element{
		Addr: netip.MustParseAddr("203.0.113.1"), Protocol: inet.TCP, Port: 80, Addr2: netip.MustParseAddr("10.0.0.0"), Bits2: 8,
	}}
	apply(t, b, kernel.Op{Verb: kernel.Create, Object: ranges}, kernel.Op{Verb: kernel.Create, Object: ports}, kernel.Op{Verb: kernel.Create, Object: ours})
	for _, stray := range []struct {
		set     kernel.Set
		element string
	}{
		{ranges, "203.0.113.1 . tcp . 443 . 198.51.100.10-198.51.100.20"}, {ranges, "203.0.113.1 . tcp . 444 . 0.0.0.0/0"},
		{ranges, "203.0.113.1 . tcp . 400-410 . 192.0.2.0/24"}, {ranges, "203.0.113.8/30 . tcp . 80 . 192.0.2.0/24"},
		{ranges, "203.0.113.1 . tcp . 80 . 11.0.0.1-11.0.0.2"}, {ports, "203.0.113.1 . 0 . 80"},
	} {
		labtest.Run(t, "nft", "add", "element", "inet", Table, stray.set.Name, "{ "+stray.element+" }")
		expect := func(when string, isStray bool) {
			t.Helper()
			want := stray.set
			want.Stray = isStray
			sets, members, err := b.ReadSets(t.Context(), prefix)
			if err != nil || sets[want.Name] != want || len(members[ports.Name]) > 0 || len(members[ranges.Name]) != 1 {
				t.Errorf("%s, %s: read %v with %v: %v", stray.element, when, sets, members, err)
			}
			if found, err := b.LookupMembers(t.Context(), []kernel.Member{ours}); err != nil || len(found) != 1 {
				t.Errorf("%s, %s: found %v, %v", stray.element, when, found, err)
			}
		}
		expect("before", true)
		apply(t, b, kernel.Op{Verb: kernel.Update, Object: stray.set})
		expect("after", false)
	}
}

func TestLargeSetIsReplaced(t *testing.T) {
	const many = 10_000
	b := open(t)
	set := kernel.Set{Name: "S", Type: kernel.HashIPPortIP, Family: inet.IPv6, MaxElem: 2 * many}
	ops := []kernel.Op{{Verb: kernel.Create, Object: set}}
	a := netip.MustParseAddr("fd00::1")
	for range many {
		ops, a = append(ops, kernel.Op{Verb: kernel.Create, Object: kernel.Member{
			Set: set.Name, Element: kernel.Element{Addr: a, Protocol: inet.TCP, Port: 80, Addr2: a},
		}}), a.Next()
	}
	apply(t, b, ops...)
	set.MaxElem *= 2
	apply(t, b, kernel.Op{Verb: kernel.Update, Object: set})
	sets, members, err := b.ReadSets(t.Context(), set.Name)
	if err != nil || sets[set.Name] != set || len(members[set.Name]) != many {
		t.Errorf("%v with %d members: %v", sets[set.Name], len(members[set.Name]), err)
	}
}

// TestLeavesBalancing: rules replace balancing even if another program's rule uses one of its chains. Many affinity maps are no obstacle.
func TestLeavesBalancing(t *testing.T) {
	b := open(t)
	balancer, err := balance.New([]inet.Family{inet.IPv4})
	labtest.Opened(t, balancer, err)
	const many = 3000 // with 3,000, a single transaction with all deletions lost acknowledgments
	var creates []kernel.Op
	for n := range many {
		key := kernel.ServerKey{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(n >> 8), byte(n)}), 80), Protocol: inet.TCP}
		server := kernel.Server{Key: key, Scheduler: "rr", Flags: kernel.FlagPersistent, Timeout: 10800, MaskBits: 32}
		d := kernel.Destination{Addr: netip.MustParseAddrPort("10.244.0.1:80"), Weight: 1}
		creates = append(creates, kernel.Op{Verb: kernel.Create, Object: server},
			kernel.Op{Verb: kernel.Create, Object: kernel.ServerDestination{Server: key, Destination: d}})
	}
	apply(t, balancer, creates...)
	labtest.Run(t, "nft", "add chain inet kube-ipvs mine; add rule inet kube-ipvs mine jump pick4.1")
	set := kernel.Set{Name: "S4", Type: kernel.HashIPPort, Family: inet.IPv4, MaxElem: 10}
	apply(t, b, kernel.Op{Verb: kernel.Create, Object: set}, kernel.Op{Verb: kernel.Ensure, Object: everything(inet.IPv4, set)})
	chains, err := b.conn.Chains(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	left := slices.DeleteFunc(chains, func(name string) bool { _, _, ours := parseChain(name); return ours })
	if slices.Sort(left); !slices.Equal(left, []string{"mine", "pick4.1"}) {
		t.Errorf("%d other chains remain: %v", len(left), left[:min(len(left), 5)])
	}
}
