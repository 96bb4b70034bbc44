package kerneltest

import (
	"fmt"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Chains are the chains that a Kernel under test must read.
var Chains = []kernel.ChainID{natChain, markChain, filterChain, mangleChain}

var (
	natChain    = kernel.ChainID{Table: "nat", Chain: "KUBE-TEST-NAT"}
	markChain   = kernel.ChainID{Table: "nat", Chain: "KUBE-TEST-MARK"}
	filterChain = kernel.ChainID{Table: "filter", Chain: "KUBE-TEST-FILTER"}
	mangleChain = kernel.ChainID{Table: "mangle", Chain: "KUBE-TEST-MANGLE"}
	postrouting = kernel.ChainID{Table: "nat", Chain: "POSTROUTING"}
	output      = kernel.ChainID{Table: "filter", Chain: "OUTPUT"}
	input       = kernel.ChainID{Table: "filter", Chain: "INPUT"}
)

func matching(s kernel.Set) kernel.Ruleset {
	r := typical(s.Family, 0)
	for i, c := range r.Chains {
		if c.ChainID == filterChain {
			r.Chains[i].Rules = append(c.Rules, kernel.Rule{
				Why: "what the set holds", Conditions: []kernel.Condition{kernel.InSet{Set: s.Name, Key: keys[s.Type]}}, Verdict: kernel.Return,
			})
		}
	}
	return r
}

var keys = map[kernel.SetType]kernel.SetKey{
	kernel.HashIP: kernel.KeyDestination, kernel.HashIPPort: kernel.KeyDestinationPort,
	kernel.HashIPPortIP: kernel.KeyDestinationClient, kernel.HashIPPortNet: kernel.KeyDestinationClient,
}

func jump(from, to kernel.ChainID) kernel.Jump {
	return kernel.Jump{ChainID: from, Rule: kernel.Rule{Why: "to " + to.Chain, Verdict: kernel.JumpTo(to.Chain)}}
}

// typical returns a ruleset with three tables, four chains and n additional rules.
func typical(family inet.Family, n int) kernel.Ruleset {
	r := kernel.Ruleset{
		Family: family,
		Chains: []kernel.Chain{
			{ChainID: markChain},
			{ChainID: natChain, Rules: []kernel.Rule{
				{Why: "masquerade what goes to a pod", Conditions: ofProtocol(inet.TCP), Verdict: kernel.Masquerade{}},
				{Why: "an \"odd\" reason, with 'quotes'", Verdict: kernel.JumpTo(markChain.Chain)},
			}},
			{ChainID: filterChain, Rules: []kernel.Rule{
				{Why: "the rest", Conditions: []kernel.Condition{kernel.Established{}}, Verdict: kernel.Return},
			}},
			{ChainID: mangleChain, Rules: []kernel.Rule{
				{Why: "mark early", Conditions: ofProtocol(inet.SCTP), Verdict: kernel.SetMark(1)},
			}},
		},
		Jumps: []kernel.Jump{jump(postrouting, natChain), jump(input, filterChain)},
	}
	for _, hook := range []string{"PREROUTING", "INPUT", "OUTPUT"} {
		r.Jumps = append(r.Jumps, jump(kernel.ChainID{Table: "mangle", Chain: hook}, mangleChain))
	}
	for i := range n {
		r.Chains[2].Rules = append(r.Chains[2].Rules, kernel.Rule{
			Why: fmt.Sprintf("mark %d", i+1), Conditions: []kernel.Condition{kernel.Marked{Bits: uint32(i + 1)}}, Verdict: kernel.Return,
		})
	}
	return r
}

func ofProtocol(p inet.Protocol) []kernel.Condition {
	return []kernel.Condition{kernel.OfProtocol{Protocol: p}}
}

// holdsRules checks that the kernel contains exactly the rules of the ruleset.
func holdsRules(b *bench, what string, want kernel.Ruleset) {
	b.Helper()
	have := b.read().Rules[want.Family]
	if !have.Holds(want.View()) {
		b.Errorf("%s: the kernel does not contain the ruleset", what)
	}
	holds(b, what, want.View(), have)
}

func rulesReadBack(b *bench) {
	for _, family := range inet.Families {
		holdsRules(b, "before", kernel.Ruleset{Family: family})
		for _, n := range []int{0, 3, 1} {
			want := typical(family, n)
			b.must(op(kernel.Ensure, want))
			holdsRules(b, fmt.Sprintf("%s, %d more rules", family, n), want)
			b.must(op(kernel.Ensure, want))
			holdsRules(b, fmt.Sprintf("%s, %d more rules, twice", family, n), want)
		}
	}
}

func rulesRefusals(b *bench) {
	s := setNamed("A")
	b.refused(nil, op(kernel.Ensure, matching(s)))
	six := s
	six.Family = inet.IPv6
	b.must(op(kernel.Create, six))
	b.refused(nil, op(kernel.Ensure, matching(s)))
	b.must(op(kernel.Delete, six))
	b.must(creates(s)...)
	b.must(op(kernel.Ensure, matching(s)))
	holdsRules(b, "after the set was created", matching(s))

	bad := typical(inet.IPv4, 0)
	bad.Chains[2].Rules[0] = kernel.Rule{Verdict: kernel.JumpTo("NO-SUCH-CHAIN")}
	before := b.read().Rules[inet.IPv4].Chains[filterChain]
	if err := b.apply(op(kernel.Ensure, bad))[0]; err == nil {
		b.Error("a jump to a missing chain was accepted")
	}
	holds(b, "a table with a bad rule", before, b.read().Rules[inet.IPv4].Chains[filterChain])
	b.must(op(kernel.Ensure, typical(inet.IPv4, 0)))
	holdsRules(b, "repaired", typical(inet.IPv4, 0))
}

func rulesByOthers(b *bench) {
	for _, family := range inet.Families {
		want := typical(family, 1)
		broken := func(what string) {
			b.Helper()
			if b.read().Rules[family].Holds(want.View()) {
				b.Errorf("%s: %s: not detected", family, what)
			}
			b.must(op(kernel.Ensure, want))
			holdsRules(b, what+", repaired", want)
		}
		b.must(op(kernel.Ensure, want))
		b.byAdmin(b.Admin.AppendRule(family, filterChain, "-p", "tcp", "-j", "DROP"))
		broken("a foreign rule in our chain")
		b.byAdmin(b.Admin.FlushChain(family, natChain))
		broken("our chain flushed")
		b.byAdmin(b.Admin.FlushChain(family, input))
		broken("our jump deleted")
		b.byAdmin(b.Admin.FlushChain(family, kernel.ChainID{Table: "mangle", Chain: "OUTPUT"}))
		broken("our jump in another table deleted")

		mangleInput := kernel.ChainID{Table: "mangle", Chain: "INPUT"}
		b.byAdmin(b.Admin.InsertRule(family, mangleInput, "-p", "udp", "-j", "ACCEPT"))
		b.byAdmin(b.Admin.InsertRule(family, postrouting, "-j", "RETURN"))
		broken("a rule accepts packets before our jump")
		if b.OwnTable {
			continue
		}
		b.byAdmin(b.Admin.InsertRule(family, mangleInput, "-p", "udp", "-j", "MARK", "--set-mark", "1"))
		b.byAdmin(b.Admin.InsertRule(family, input, "-p", "tcp", "-j", "ACCEPT"))
		holdsRules(b, "rules before our jumps that do not affect our packets", want)

		b.byAdmin(b.Admin.AppendRule(family, input, "-p", "udp", "-j", "ACCEPT"))
		b.must(op(kernel.Ensure, want))
		holdsRules(b, "a foreign rule in a built-in chain is not read", want)
	}
}

// A ruleset with different jumps replaces all old jumps.
func rulesChanged(b *bench) {
	for _, family := range inet.Families {
		old, next := typical(family, 0), typical(family, 1)
		old.Jumps = append(old.Jumps, jump(output, filterChain))
		next.Jumps[0].Why = "another reason"
		next.Jumps = next.Jumps[:len(next.Jumps)-1] // in table mangle
		b.must(op(kernel.Ensure, old))
		holdsRules(b, "old", old)
		b.must(op(kernel.Ensure, next))
		holdsRules(b, "next", next)
	}
}

// Deletion removes our rules, and keeps chains that foreign rules use.
func rulesDelete(b *bench) {
	for _, family := range inet.Families {
		rules := typical(family, 2)
		b.must(op(kernel.Delete, rules))
		b.must(op(kernel.Ensure, rules), op(kernel.Delete, rules), op(kernel.Delete, rules))
		holdsRules(b, "after delete", kernel.Ruleset{Family: family})
		if b.OwnTable {
			continue
		}

		b.must(op(kernel.Ensure, rules))
		b.byAdmin(b.Admin.AppendRule(family, natChain, "-p", "udp", "-j", "ACCEPT"))
		b.byAdmin(b.Admin.AppendRule(family, input, "-p", "udp", "-j", filterChain.Chain))
		b.must(op(kernel.Delete, rules))
		holds(b, "chains that foreign rules use", kernel.RulesView{Chains: map[kernel.ChainID][]string{
			natChain: {""}, filterChain: {},
		}}, b.read().Rules[family])
		b.byAdmin(b.Admin.FlushChain(family, natChain))
		b.byAdmin(b.Admin.FlushChain(family, input))
		b.must(op(kernel.Delete, rules))
		holdsRules(b, "after deleting foreign rules", kernel.Ruleset{Family: family})
	}
}
