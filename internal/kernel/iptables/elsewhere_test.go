package iptables

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/labtest"
)

func (n *node) elsewhere() *Leftovers {
	n.Helper()
	l, err := n.Elsewhere(context.Background())
	n.must(err)
	return l
}

// A node that changes its variant keeps nothing of ours in the old one, and everything of others.
func TestElsewhere(t *testing.T) {
	onEveryVariant(t, func(old *node) {
		now := &node{old.T, New(Config{Chains: append(ourChains, chainM), Variant: old.variant.other(), Families: inet.Families}), old.family, old.reader}
		old.must(old.reader.Append("nat", "PREROUTING", "-p", "tcp", "-j", "RETURN"))
		for _, id := range append(ourChains, chainM) {
			old.must(old.reader.NewChain(id.Table, id.Chain)) // kube-proxy's have the same names
		}
		if l := now.elsewhere(); l != nil {
			t.Errorf("others' rules are taken for ours: %s", l)
		}
		old.must(old.apply(kernel.Delete, old.ruleset()))
		before := old.dump()
		old.must(old.apply(kernel.Ensure, old.ruleset()))
		now.must(now.apply(kernel.Ensure, now.ruleset()))
		l := now.elsewhere()
		if l == nil || l.Variant != old.variant || !cmp.Equal(l.Families, []inet.Family{old.family}) {
			t.Fatalf("found %+v, want %s of %s", l, old.variant, old.family)
		}
		now.must(l.Remove(context.Background()))
		if diff := cmp.Diff(before, old.dump()); diff != "" {
			t.Errorf("the old variant (-before +after):\n%s", diff)
		}
		now.wantView(now.ruleset().View())
		if l := now.elsewhere(); l != nil {
			t.Errorf("still there: %s", l)
		}
	})
}

func TestLookingElsewhereLoadsNothing(t *testing.T) {
	labtest.NetNSNoIPVS(t)
	if l, err := New(Config{Chains: ourChains, Variant: NFT}).Elsewhere(context.Background()); l != nil || err != nil {
		t.Errorf("found %v, %v in a fresh namespace", l, err)
	}
	for _, file := range []string{"ip_tables_names", "ip6_tables_names"} {
		tables, err := os.ReadFile("/proc/thread-self/net/" + file)
		if err == nil && len(tables) > 0 {
			t.Errorf("legacy tables are loaded: %s", tables)
		}
	}
}

func TestElsewhereIsNotInstalled(t *testing.T) {
	fakeCommands(t, map[string]string{NFT.command(inet.IPv4, ""): "exit 0"})
	if l, err := New(Config{Variant: NFT}).Elsewhere(context.Background()); l != nil || err != nil {
		t.Errorf("found %v, %v", l, err)
	}
}

func TestElsewhereCannotBeRead(t *testing.T) {
	fakeCommands(t, map[string]string{
		Legacy.command(inet.IPv4, ""): "exit 0", Legacy.command(inet.IPv4, "-restore"): "exit 0",
		Legacy.command(inet.IPv4, "-save"): "echo broken >&2; exit 1",
	})
	l, err := New(Config{Variant: NFT}).Elsewhere(context.Background())
	if l != nil || err == nil || !strings.Contains(err.Error(), "iptables-legacy") {
		t.Errorf("found %v, %v; want an error that names the variant", l, err)
	}
}
