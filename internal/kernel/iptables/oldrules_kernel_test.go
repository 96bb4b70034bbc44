package iptables

import (
	"context"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

func TestOldRulesAreRemoved(t *testing.T) {
	onEveryVariant(t, func(old *node) {
		now := &node{old.T, New(Config{Chains: append(ourChains, chainM), Variant: old.variant.Other(), Families: inet.Families}), old.family, old.reader}
		old.must(old.reader.Append("nat", "PREROUTING", "-p", "tcp", "-j", "RETURN"))
		for _, id := range append(ourChains, chainM) {
			old.must(old.reader.NewChain(id.Table, id.Chain)) // kube-proxy's have the same names
		}
		if rules := now.oldRules(); len(rules) > 0 {
			t.Errorf("foreign rules count as ours: %s", rules)
		}
		old.must(old.apply(kernel.Delete, old.ruleset()))
		before := old.dump()
		old.must(old.apply(kernel.Ensure, old.ruleset()))
		now.must(now.apply(kernel.Ensure, now.ruleset()))
		want := []kernel.OldRules{{Variant: string(old.variant), Family: old.family}}
		if found := now.oldRules(); !cmp.Equal(found, want) {
			t.Fatalf("found %v, want %v", found, want)
		}
		now.must(now.Apply(context.Background(), []kernel.Op{{Verb: kernel.Delete, Object: want[0]}})[0])
		if diff := cmp.Diff(before, old.dump()); diff != "" {
			t.Errorf("the old variant (-before +after):\n%s", diff)
		}
		now.wantView(now.ruleset().View())
		if rules := now.oldRules(); len(rules) > 0 {
			t.Errorf("not removed: %s", rules)
		}
	})
}

func TestFindingOldRulesLoadsNoTable(t *testing.T) {
	labtest.NetNSNoIPVS(t)
	old, err := New(Config{Chains: ourChains, Variant: NFT}).FindOldRules(context.Background())
	if len(old) > 0 || err != nil {
		t.Errorf("found %v, %v in a fresh namespace", old, err)
	}
	for _, file := range []string{"ip_tables_names", "ip6_tables_names"} {
		tables, err := os.ReadFile("/proc/thread-self/net/" + file)
		if err == nil && len(tables) > 0 {
			t.Errorf("legacy tables are loaded: %s", tables)
		}
	}
}
