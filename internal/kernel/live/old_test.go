package live

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft"
)

var (
	oldLedger = kernel.Set{Name: kerneltest.SetPrefix + "LEDGER", Type: kernel.HashIPPort, Family: inet.IPv4, MaxElem: 100}
	oldVIPs   = kernel.Set{Name: kerneltest.SetPrefix + "VIP", Type: kernel.HashIP, Family: inet.IPv4, MaxElem: 100}
	seal      = kernel.Member{Set: oldLedger.Name, Element: kernel.Element{Addr: netip.MustParseAddr("127.0.0.1"), Protocol: inet.TCP, Port: 1}}
	entry     = kernel.Member{Set: oldLedger.Name, Element: kernel.Element{Addr: netip.MustParseAddr("10.96.0.1"), Protocol: inet.TCP, Port: 443}}
	address   = kernel.Member{Set: oldVIPs.Name, Element: kernel.Element{Addr: netip.MustParseAddr("10.96.0.1")}}
)

// movable opens the kernel with Records, as the agent does.
func movable(t *testing.T, cfg Config) *Kernel {
	t.Helper()
	cfg.Records = []Records{{Ledger: oldLedger.Name, Addresses: oldVIPs.Name, Seal: seal}}
	return openConfig(t, cfg)
}

func must(t *testing.T, k *Kernel, ops ...kernel.Op) {
	t.Helper()
	for i, err := range k.Apply(t.Context(), ops) {
		if err != nil {
			t.Fatalf("%s: %v", ops[i], err)
		}
	}
}

func create(objects ...kernel.Object) (ops []kernel.Op) {
	for _, o := range objects {
		ops = append(ops, kernel.Op{Verb: kernel.Create, Object: o})
	}
	return ops
}

// oldRuleset returns rules that match both sets, so that the kernel refuses to delete the sets.
func oldRuleset() kernel.Ruleset {
	in := kernel.ChainID{Table: "filter", Chain: "INPUT"}
	chain := kerneltest.Chains[2]
	return kernel.Ruleset{
		Family: inet.IPv4,
		Chains: []kernel.Chain{{ChainID: chain, Rules: []kernel.Rule{
			{Why: "a virtual address", Conditions: []kernel.Condition{kernel.InSet{Set: oldVIPs.Name, Key: kernel.KeyDestination}}, Verdict: kernel.Return},
		}}},
		Jumps: []kernel.Jump{{ChainID: in, Rule: kernel.Rule{Why: "all", Verdict: kernel.JumpTo(chain.Chain)}}},
	}
}

// If there is nothing to adopt, the agent does not read the old rules, because that would start processes.
func TestNothingToAdopt(t *testing.T) {
	labtest.NetNS(t)
	k := movable(t, Config{Variant: iptables.NFT})
	if err := k.AdoptRecords(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := k.iptables.Processes(); n > 0 {
		t.Errorf("started %d processes", n)
	}
}

// After a change of the rule layer, the agent finds the previous agent's owner records, adopts them once, and removes the old sets and
// rules.
func TestMoves(t *testing.T) {
	for _, tc := range []struct {
		name     string
		from, to Config
	}{
		{"from iptables-nft to nftables", Config{Variant: iptables.NFT}, Config{Mode: kernel.IPVSWithNFTables}},
		{"from iptables-legacy to nftables", Config{Variant: iptables.Legacy}, Config{Mode: kernel.IPVSWithNFTables}},
		{"from nftables to iptables", Config{Mode: kernel.IPVSWithNFTables}, Config{Variant: iptables.NFT}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			labtest.NetNS(t)
			before := movable(t, tc.from)
			must(t, before, create(oldLedger, oldVIPs, entry, address, seal)...)
			must(t, before, kernel.Op{Verb: kernel.Ensure, Object: oldRuleset()})

			k := movable(t, tc.to)
			holdsRecords(t, k, true)
			if err := k.AdoptRecords(t.Context()); err != nil {
				t.Fatal(err)
			}
			must(t, k, kernel.Op{Verb: kernel.Ensure, Object: oldRuleset()})
			must(t, k, kernel.Op{Verb: kernel.Delete, Object: entry})
			holdsRecords(t, k, false) // the current records are complete, so the old records are ignored

			old, err := k.FindOldRules(t.Context())
			if err != nil || len(old) == 0 {
				t.Fatalf("found %v, %v", old, err)
			}
			for _, o := range old {
				must(t, k, kernel.Op{Verb: kernel.Delete, Object: o})
			}
			if left, err := k.FindOldRules(t.Context()); err != nil || len(left) > 0 {
				t.Errorf("left: %v, %v", left, err)
			}
			if tc.to.Mode.RulesInNFTables() {
				quiet(t, "ipset save")
				quiet(t, "iptables-nft-save; iptables-legacy-save | grep -v '^[#:*]\\|COMMIT'")
			} else {
				quiet(t, "nft list tables | grep 'inet "+nft.Table+"'")
			}
			holdsRecords(t, k, false)
		})
	}
}

func holdsRecords(t *testing.T, k *Kernel, server bool) {
	t.Helper()
	s, err := k.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !s.HasMember(address) || !s.HasMember(seal) || s.HasMember(entry) != server {
		t.Errorf("records: %v, %v", slices.Collect(maps.Keys(s.Members[oldLedger.Name])), slices.Collect(maps.Keys(s.Members[oldVIPs.Name])))
	}
}

// quiet checks that the output of a command does not mention the agent's objects.
func quiet(t *testing.T, line string) {
	t.Helper()
	out, _ := exec.Command("sh", "-c", line).Output()
	if text := string(out); strings.Contains(text, kerneltest.SetPrefix) || strings.Contains(text, kerneltest.Chains[2].Chain) || strings.Contains(text, "inet") {
		t.Errorf("%s:\n%s", line, text)
	}
}

// The agent empties a set that another program's rule uses, so that the rule matches nothing. The error names the set. A later run ignores
// the set's records.
func TestOldSetsInUse(t *testing.T) {
	labtest.NetNS(t)
	before := movable(t, Config{Variant: iptables.NFT})
	must(t, before, create(oldLedger, oldVIPs, entry, address, seal)...)
	labtest.Run(t, "iptables-nft", "-A", "INPUT", "-m", "set", "--match-set", oldVIPs.Name, "dst", "-j", "DROP")
	k := movable(t, Config{Mode: kernel.IPVSWithNFTables})
	errs := k.Apply(context.Background(), []kernel.Op{{Verb: kernel.Delete, Object: kernel.OldRules{Variant: kernel.OldSets}}})
	if fmt.Sprint(errs[0]) == "<nil>" || !strings.Contains(errs[0].Error(), oldVIPs.Name) || !strings.Contains(errs[0].Error(), "kube-ipvs cleanup") {
		t.Errorf("error %v", errs[0])
	}
	out, err := exec.Command("ipset", "save").Output()
	if err != nil || strings.Contains(string(out), "add ") || strings.Contains(string(out), oldLedger.Name) {
		t.Errorf("%v:\n%s", err, out)
	}
}
