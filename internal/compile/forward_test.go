package compile_test

import (
	"slices"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
)

// A node may route only one direction of a connection, so no rule drops packets that conntrack considers invalid.
func TestInvalidPacketsPass(t *testing.T) {
	for _, rules := range compile.Base(compiletest.Config()).Rulesets {
		for _, chain := range rules.Chains {
			for _, rule := range chain.Rules {
				if slices.Contains(rule.Args(), "INVALID") && slices.Contains(rule.Args(), "DROP") {
					t.Errorf("%s %s: %v", rules.Family, chain.ChainID, rule)
				}
			}
		}
	}
}
