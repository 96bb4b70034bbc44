package diff_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
)

// On a node with complete rules, half of many new Services are served after half of the plan.
func TestPartsServeInOrder(t *testing.T) {
	added := plan(clusterWith(compiletest.Many(100, 5)).Want(), start(t, clusterOf().Want()).State(), read())
	if n := len(added.Parts(added.Len())); n != 1 {
		t.Errorf("%d parts of a plan that fits into one", n)
	}
	parts := added.Parts(added.Len() / 10)
	if len(parts) < 9 {
		t.Fatalf("%d parts of a plan of %d operations", len(parts), added.Len())
	}
	for i, part := range parts {
		if bound := slices.ContainsFunc(commands(part), func(c string) bool { return strings.HasPrefix(c, "ip addr add ") }); !bound {
			t.Errorf("part %d of %d binds no address, so it serves no client", i, len(parts))
		}
	}
}

// A plan that also removes, changes the rules or creates sets stays whole.
func TestOtherPlansStayWhole(t *testing.T) {
	many := clusterWith(compiletest.Many(20, 2)).Want()
	for name, p := range map[string]func() int{
		"bare node": func() int { return len(plan(many, newFake().State(), read()).Parts(1)) },
		"one deleted Service": func() int {
			return len(plan(many, start(t, clusterOf(compiletest.Service("old", "10.96.99.1", "10.244.0.53")).Want()).State(), read()).Parts(1))
		},
	} {
		if n := p(); n != 1 {
			t.Errorf("%s: %d parts", name, n)
		}
	}
}
