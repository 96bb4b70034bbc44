package iptables

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	goiptables "github.com/coreos/go-iptables/iptables"
	"github.com/google/go-cmp/cmp"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

// node is a new network namespace with a backend for one variant and family. Tests compare the backend with go-iptables.
type node struct {
	*testing.T
	*Backend
	family inet.Family
	reader *goiptables.IPTables
}

func onEveryVariant(t *testing.T, test func(*node)) {
	for _, v := range []Variant{NFT, Legacy} {
		for _, f := range inet.Families {
			t.Run(fmt.Sprintf("%s %s", v, f), func(t *testing.T) {
				labtest.NetNSNoIPVS(t)
				reader, err := openTool(v, f)
				if err != nil {
					t.Fatal(err)
				}
				chains := append(slices.Clone(ourChains), chainM)
				test(&node{t, New(Config{Chains: chains, Variant: v, Families: []inet.Family{f}}), f, reader})
			})
		}
	}
}

var chainM = kernel.ChainID{Table: "mangle", Chain: "KUBE-M"}

func (n *node) ruleset() kernel.Ruleset {
	r := testRuleset()
	r.Family = n.family
	r.Chains = append(r.Chains, kernel.Chain{ChainID: chainM, Rules: []kernel.Rule{
		{Why: "remember", Conditions: []kernel.Condition{kernel.Established{Not: true}}, Verdict: kernel.SetMark(0x4000)},
	}})
	for _, from := range []string{"PREROUTING", "INPUT", "OUTPUT"} {
		r.Jumps = append(r.Jumps, jumpTo(chainM.Table, from, chainM.Chain, "from "+from))
	}
	return r
}

func (n *node) apply(verb kernel.Verb, r kernel.Ruleset) error {
	return n.Apply(context.Background(), []kernel.Op{{Verb: verb, Object: r}})[0]
}

func (n *node) must(err error) {
	n.Helper()
	if err != nil {
		n.Fatal(err)
	}
}

func (n *node) view() kernel.RulesView {
	n.Helper()
	view, err := n.Read(context.Background(), n.family)
	n.must(err)
	return view
}

func (n *node) wantView(want kernel.RulesView) {
	n.Helper()
	if diff := cmp.Diff(want, n.view()); diff != "" {
		n.Errorf("view: -want +got\n%s", diff)
	}
}

func (n *node) dump() string {
	n.Helper()
	out, err := exec.Command(n.variant.command(n.family, "-save")).Output()
	n.must(err)
	return strings.Join(slices.DeleteFunc(strings.Split(string(out), "\n"), func(l string) bool { return strings.HasPrefix(l, "#") }), "\n")
}

func TestEnsure(t *testing.T) {
	onEveryVariant(t, func(n *node) {
		n.wantView(kernel.RulesView{Chains: map[kernel.ChainID][]string{}, Jumps: map[kernel.ChainID][]string{}})
		r := n.ruleset()
		n.must(n.apply(kernel.Ensure, r))
		n.wantView(r.View())

		chains, err := n.reader.ListChains("nat")
		n.must(err)
		for _, name := range []string{"KUBE-X", "KUBE-Y"} {
			if !slices.Contains(chains, name) {
				n.Errorf("go-iptables lists chains %q, not %s", chains, name)
			}
		}
		rules, err := n.reader.List("nat", "PREROUTING")
		n.must(err)
		if len(rules) != 3 || !strings.Contains(rules[1], "-j KUBE-X") || !strings.Contains(rules[2], "-j KUBE-Y") {
			n.Errorf("go-iptables lists PREROUTING as %q, want jumps to KUBE-X, KUBE-Y", rules)
		}

		before := n.dump()
		n.must(n.apply(kernel.Ensure, r))
		if diff := cmp.Diff(before, n.dump()); diff != "" {
			n.Errorf("a second Ensure changed something: -before +after\n%s", diff)
		}
	})
}

func TestEnsureRepairs(t *testing.T) {
	onEveryVariant(t, func(n *node) {
		r := n.ruleset()
		n.must(n.apply(kernel.Ensure, r))
		for _, harm := range []struct {
			name string
			do   func() error
		}{
			{"built-in chain flushed", func() error { return n.reader.ClearChain("nat", "PREROUTING") }},
			{"jump of table mangle deleted", func() error { return n.reader.ClearChain("mangle", "INPUT") }},
			{"chain of table mangle flushed", func() error { return n.reader.ClearChain("mangle", "KUBE-M") }},
			{"our chain flushed", func() error { return n.reader.ClearChain("nat", "KUBE-X") }},
			{"foreign rule inserted", func() error { return n.reader.Insert("nat", "KUBE-X", 1, "-j", "ACCEPT") }},
			{"rule deleted", func() error { return n.reader.DeleteById("nat", "KUBE-X", 1) }},
			{"everything deleted", func() error { return errors.Join(n.reader.ClearAll(), n.reader.DeleteAll()) }},
		} {
			n.must(harm.do())
			n.must(n.apply(kernel.Ensure, r))
			if diff := cmp.Diff(r.View(), n.view()); diff != "" {
				n.Errorf("%s: -want +got\n%s", harm.name, diff)
			}
		}
	})
}

func TestEnsureReplacesOlderTexts(t *testing.T) {
	onEveryVariant(t, func(n *node) {
		old := n.ruleset()
		old.Jumps[0].Why = `what an "older" version said; it's gone`
		old.Jumps[0].Conditions = []kernel.Condition{kernel.Established{Not: true}}
		n.must(n.apply(kernel.Ensure, old))
		n.wantView(old.View())
		n.must(n.apply(kernel.Ensure, n.ruleset()))
		want := n.ruleset().View()
		got := n.view()
		for _, tags := range []kernel.RulesView{want, got} { // the new jump comes first
			slices.Sort(tags.Jumps[kernel.ChainID{Table: "nat", Chain: "PREROUTING"}])
		}
		if diff := cmp.Diff(want, got); diff != "" {
			n.Errorf("view: -want +got\n%s", diff)
		}
	})
}

func TestForeignRulesStay(t *testing.T) {
	onEveryVariant(t, func(n *node) {
		for _, args := range [][]string{
			{"-m", "comment", "--comment", "a \"foreign\" rule", "-j", "ACCEPT"},
			{"-p", "tcp", "-m", "tcp", "--dport", "8080", "-j", "RETURN"},
		} {
			n.must(n.reader.Append("nat", "PREROUTING", args...))
			n.must(n.reader.Append("filter", "INPUT", args...))
			n.must(n.reader.Append("mangle", "INPUT", args...))
		}
		before := n.dump()
		n.must(n.apply(kernel.Ensure, n.ruleset()))
		n.must(n.apply(kernel.Delete, n.ruleset()))
		if diff := cmp.Diff(before, n.dump()); diff != "" {
			n.Errorf("Ensure and Delete left something behind: -before +after\n%s", diff)
		}
		n.must(n.apply(kernel.Delete, n.ruleset()))
	})
}

func TestDeleteSparesKubeProxy(t *testing.T) {
	onEveryVariant(t, func(n *node) {
		n.must(n.apply(kernel.Ensure, n.ruleset()))
		n.must(n.reader.Append("nat", "KUBE-X", "-j", "ACCEPT"))
		n.must(n.reader.Append("nat", "OUTPUT", "-j", "KUBE-Y"))
		n.must(n.apply(kernel.Delete, n.ruleset()))
		n.wantView(kernel.RulesView{
			Chains:  map[kernel.ChainID][]string{chainX: {""}, chainY: {}},
			Jumps:   map[kernel.ChainID][]string{},
			Foreign: map[kernel.ChainID][]string{chainX: {"-j ACCEPT"}},
		})
	})
}

func TestRefusedRuleIsNamed(t *testing.T) {
	onEveryVariant(t, func(n *node) {
		r := n.ruleset()
		n.must(n.apply(kernel.Ensure, r))
		broken := n.ruleset()
		broken.Chains[0].Rules[1].Conditions = []kernel.Condition{kernel.InSet{Set: "NO-SUCH-SET", Key: kernel.KeyDestination}}
		err := n.apply(kernel.Ensure, broken)
		if err == nil || !strings.Contains(err.Error(), "-A KUBE-X") || !strings.Contains(err.Error(), "NO-SUCH-SET") {
			n.Errorf("error %v does not name the rule", err)
		}
		n.wantView(r.View()) // the table has not changed
	})
}

func TestMatchesSets(t *testing.T) {
	onEveryVariant(t, func(n *node) {
		family := map[inet.Family]string{inet.IPv4: "inet", inet.IPv6: "inet6"}[n.family]
		n.must(exec.Command("ipset", "create", "S", "hash:ip,port", "family", family).Run())
		r := n.ruleset()
		r.Chains[0].Rules[0].Conditions = []kernel.Condition{kernel.InSet{Set: "S", Key: kernel.KeyDestinationPort}}
		n.must(n.apply(kernel.Ensure, r))
		n.wantView(r.View())
		n.must(n.apply(kernel.Delete, r))
		n.wantView(kernel.RulesView{Chains: map[kernel.ChainID][]string{}, Jumps: map[kernel.ChainID][]string{}})
		n.must(exec.Command("ipset", "destroy", "S").Run())
	})
}

func TestNativeRulesMakeReadFail(t *testing.T) {
	labtest.NetNSNoIPVS(t)
	script := `add table ip nat
add chain ip nat PREROUTING { type nat hook prerouting priority -100; }
add map ip nat M { type ipv4_addr : ipv4_addr; }
add rule ip nat PREROUTING dnat to ip daddr map @M
`
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("nft is not installed: %v %s", err, out)
	}
	b := New(Config{Chains: []kernel.ChainID{chainX}, Variant: NFT, Families: inet.Families})
	if _, err := b.Read(context.Background(), inet.IPv4); err == nil || !strings.Contains(err.Error(), "table nat") {
		t.Errorf("Read: %v, want an error about table nat", err)
	}
}

func TestProcessesAreCounted(t *testing.T) {
	onEveryVariant(t, func(n *node) {
		n.Apply(context.Background(), nil)
		if got := n.Processes(); got != 0 {
			n.Errorf("started %d processes for no operations", got)
		}
		n.must(n.apply(kernel.Ensure, n.ruleset())) // now there are tables to read
		before := n.Processes()
		n.view()
		n.must(n.apply(kernel.Ensure, n.ruleset()))
		if got := n.Processes() - before; got != 3 {
			n.Errorf("started %d processes for a read and an Ensure, want 3", got)
		}
	})
}

func BenchmarkEnsure(b *testing.B) {
	for _, v := range []Variant{NFT, Legacy} {
		b.Run(string(v), func(b *testing.B) {
			labtest.NetNSNoIPVS(b)
			backend := New(Config{Chains: ourChains, Variant: v, Families: []inet.Family{inet.IPv4}})
			for b.Loop() {
				for _, err := range backend.Apply(context.Background(), []kernel.Op{{Verb: kernel.Ensure, Object: testRuleset()}}) {
					if err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
