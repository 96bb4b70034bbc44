package nft

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/balance"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/wire"
)

type around struct {
	rules *Backend
	sum   *Summarizer
	sets  map[inet.Family]kernel.Ruleset
}

func newAround(t *testing.T) *around {
	t.Helper()
	a := &around{rules: open(t), sets: map[inet.Family]kernel.Ruleset{}}
	a.rules.WithBalancing()
	balancer, err := balance.New(inet.Families)
	labtest.Opened(t, balancer, err)
	a.sum, err = NewSummarizer(inet.Families, chainsOfEverything, "", wire.NewWrites())
	labtest.Opened(t, a.sum, err)
	for f, addr := range map[inet.Family]string{inet.IPv4: "10.96.0.1:80", inet.IPv6: "[fd00::1]:80"} {
		s := kernel.Set{Name: map[inet.Family]string{inet.IPv4: "four", inet.IPv6: "six"}[f], Type: kernel.HashIPPort, Family: f, MaxElem: 100}
		a.sets[f] = everything(f, s)
		apply(t, a.rules, kernel.Op{Verb: kernel.Create, Object: s}, kernel.Op{Verb: kernel.Ensure, Object: a.sets[f]})
		key := kernel.ServerKey{Addr: netip.MustParseAddrPort(addr), Protocol: inet.TCP}
		serve(t, balancer, key, kernel.Destination{Addr: key.Addr, Weight: 1})
	}
	return a
}

func serve(t *testing.T, b *balance.Balancer, key kernel.ServerKey, d kernel.Destination) {
	t.Helper()
	s := kernel.Server{Key: key, Scheduler: "rr", Flags: kernel.FlagPersistent, Timeout: 10800, MaskBits: uint8(key.Family().Bits())}
	apply(t, b, kernel.Op{Verb: kernel.Create, Object: s}, kernel.Op{Verb: kernel.Create, Object: kernel.ServerDestination{Server: key, Destination: d}})
}

func (a *around) read(t *testing.T) (map[inet.Family]kernel.RulesView, map[inet.Family]uint64) {
	t.Helper()
	views, err := a.rules.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, sums, err := a.sum.Summarize(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return views, sums
}

func TestAlteredHooks(t *testing.T) {
	a := newAround(t)
	all, err := a.rules.conn.Chains(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	damage := map[string]inet.Family{"add table inet kube-ipvs { flags dormant; }": inet.IPv4}
	for i, name := range all {
		w, base := wantedBases[name]
		if !base {
			continue
		}
		chain := "inet kube-ipvs " + name
		damage[[]string{
			"chain " + chain + " { policy drop; }",
			"flush chain " + chain + "; delete chain " + chain + "; add chain " + chain + " { type filter hook forward priority 5; }",
			"flush chain " + chain + "; delete chain " + chain + "; add chain " + chain,
		}[i%3]] = w.family
	}
	for command, f := range damage {
		before, sums := a.read(t)
		labtest.Run(t, "nft", command)
		now, sumsNow := a.read(t)
		if cmp.Equal(before[f], now[f], opaque) || sums[f] == sumsNow[f] {
			t.Errorf("%s: rules are equal: %t, summaries are equal: %t", command, cmp.Equal(before[f], now[f], opaque), sums[f] == sumsNow[f])
		}
		apply(t, a.rules, kernel.Op{Verb: kernel.Ensure, Object: a.sets[f]})
		now, _ = a.read(t)
		if d := cmp.Diff(before, now, opaque); d != "" {
			t.Errorf("%s is not repaired: -want +have\n%s", command, d)
		}
		names, err := a.rules.conn.Chains(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		chains, err := a.rules.conn.LookupChains(t.Context(), names)
		if err != nil {
			t.Fatal(err)
		}
		if left, err := a.rules.altered(t.Context(), chains); err != nil || left.family(f) || len(chains) != len(all) {
			t.Errorf("after the repair of %s: still altered: %v, error: %v, %d of %d chains exist", command, left, err, len(chains), len(all))
		}
	}
}

// TestHooksOfTheOtherFamily: writing the rules of one family does not delete a chain of the other one, whose rules may not be written soon.
func TestHooksOfTheOtherFamily(t *testing.T) {
	a := newAround(t)
	labtest.Run(t, "nft", "flush chain inet kube-ipvs nat-PREROUTING-6; delete chain inet kube-ipvs nat-PREROUTING-6; "+
		"add chain inet kube-ipvs nat-PREROUTING-6 { type nat hook prerouting priority 5; }")
	apply(t, a.rules, kernel.Op{Verb: kernel.Ensure, Object: a.sets[inet.IPv4]})
	labtest.Run(t, "nft", "list chain inet kube-ipvs nat-PREROUTING-6")
	apply(t, a.rules, kernel.Op{Verb: kernel.Ensure, Object: a.sets[inet.IPv6]})
	if chain := labtest.Run(t, "nft", "list chain inet kube-ipvs nat-PREROUTING-6"); strings.Contains(chain, "priority 5") {
		t.Error(chain)
	}
}

func TestSummaryIgnoresOtherTables(t *testing.T) {
	a := newAround(t)
	_, before := a.read(t)
	labtest.Run(t, "nft", "add table inet other")
	if _, now := a.read(t); !cmp.Equal(before, now) {
		t.Errorf("the hashes were %v and are now %v", before, now)
	}
}
