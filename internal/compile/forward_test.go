package compile_test

import (
	"slices"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
)

// The node may be a router for packets that are no Service's, and see one direction of their connections only: none of our rules
// drops what conntrack calls invalid.
func TestInvalidPacketsPass(t *testing.T) {
	for _, rules := range compile.Base(compiletest.Config()).Rulesets {
		for _, chain := range rules.Chains {
			for _, rule := range chain.Rules {
				if slices.Contains(rule.Args, "INVALID") && slices.Contains(rule.Args, "DROP") {
					t.Errorf("%s %s: %v", rules.Family, chain.ChainID, rule.Args)
				}
			}
		}
	}
}
