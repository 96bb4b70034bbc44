package compile_test

import (
	"slices"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// The agent empties the chains in which kube-proxy enforces source ranges, because kube-proxy's jumps to these chains stay until the next reboot. A
// cleanup removes the chains.
func TestSourceRangesOfKubeProxyAreRemoved(t *testing.T) {
	for _, name := range []string{"KUBE-PROXY-FIREWALL", "KUBE-IPVS-OUT-FILTER"} {
		id := kernel.ChainID{Table: "filter", Chain: name}
		if !slices.Contains(compile.Chains, id) {
			t.Errorf("%s is not ours", id)
		}
		for _, rules := range compile.Base(compiletest.Config()).Rulesets {
			i := slices.IndexFunc(rules.Chains, func(c kernel.Chain) bool { return c.ChainID == id })
			if i < 0 || len(rules.Chains[i].Rules) > 0 {
				t.Errorf("%s: %s is not emptied", rules.Family, id)
			}
		}
	}
}

// A chain that is missing from compile.Chains is not read, so every sync would rewrite it.
func TestChainsAreComplete(t *testing.T) {
	for n := range 6 {
		cfg := compiletest.Config()
		cfg.Mode, cfg.SideBySide = kernel.Mode(n/2), n%2 > 0
		for _, rules := range compile.Base(cfg).Rulesets {
			for _, c := range rules.Chains {
				if !slices.Contains(compile.Chains, c.ChainID) {
					t.Errorf("%s, %s: %s", rules.Family, cfg.Mode, c.ChainID)
				}
			}
		}
	}
}
