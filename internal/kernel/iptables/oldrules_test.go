package iptables

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/labtest"
)

func (n *node) oldRules() []kernel.OldRules {
	n.Helper()
	old, err := n.FindOldRules(context.Background())
	n.must(err)
	return old
}

// A node that changes its variant keeps no rule of kube-ipvs in the old one, and every foreign rule.
func TestOldRulesAreRemoved(t *testing.T) {
	onEveryVariant(t, func(old *node) {
		now := &node{old.T, New(Config{Chains: append(ourChains, chainM), Variant: old.variant.other(), Families: inet.Families}), old.family, old.reader}
		old.must(old.reader.Append("nat", "PREROUTING", "-p", "tcp", "-j", "RETURN"))
		for _, id := range append(ourChains, chainM) {
			old.must(old.reader.NewChain(id.Table, id.Chain)) // kube-proxy's have the same names
		}
		if rules := now.oldRules(); len(rules) > 0 {
			t.Errorf("foreign rules are taken for ours: %s", rules)
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

func TestOldRulesWithoutTheOtherVariant(t *testing.T) {
	fakeCommands(t, map[string]string{NFT.command(inet.IPv4, ""): "exit 0"})
	if old, err := New(Config{Variant: NFT}).FindOldRules(context.Background()); len(old) > 0 || err != nil {
		t.Errorf("found %v, %v", old, err)
	}
}

func TestUnreadableOldRules(t *testing.T) {
	fakeCommands(t, map[string]string{
		Legacy.command(inet.IPv4, ""): "exit 0", Legacy.command(inet.IPv4, "-restore"): "exit 0",
		Legacy.command(inet.IPv4, "-save"): "echo broken >&2; exit 1",
	})
	old, err := New(Config{Variant: NFT}).FindOldRules(context.Background())
	if len(old) > 0 || err == nil || !strings.Contains(err.Error(), "iptables-legacy") {
		t.Errorf("found %v, %v; want an error that names the variant", old, err)
	}
}

func TestTheVariantInUseIsKept(t *testing.T) {
	op := kernel.Op{Verb: kernel.Delete, Object: kernel.OldRules{Variant: string(NFT), Family: inet.IPv4}}
	if err := New(Config{Variant: NFT}).Apply(context.Background(), []kernel.Op{op})[0]; !errors.Is(err, kernel.ErrUnavailable) {
		t.Errorf("%s: %v", op, err)
	}
}
