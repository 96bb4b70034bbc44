package compile_test

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// TestGuardedSetsAreComplete: the rules look up GUARDED and GUARDED-IP before the guards, so a guard in neither set has no effect. An unnecessary
// entry slows down every packet to its port.
func TestGuardedSetsAreComplete(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := compiletest.Cluster(compiletest.Config(), compiletest.Services(t, "services"), compiletest.Around(t, "around")).Want()
		wanted, have := map[kernel.Member]bool{}, map[kernel.Member]bool{}
		for m := range w.Members {
			prefix, set := m.Set[:len(compile.SetPrefix)+2], m.Set[len(compile.SetPrefix)+2:]
			switch {
			case strings.HasPrefix(set, "GUARDED"):
				have[m] = true
			case slices.Contains([]string{"NO-LOCAL", "INSIDE-ONLY", "REFUSED"}, set):
				wanted[kernel.Member{Set: prefix + "GUARDED", Element: m.Element}] = true
			case slices.Contains([]string{"FIREWALLED", "ALL-PORTS"}, set):
				wanted[kernel.Member{Set: prefix + "GUARDED-IP", Element: kernel.Element{Addr: m.Element.Addr}}] = true
			}
		}
		for m := range wanted {
			if !have[m] {
				t.Errorf("a guard has no effect without %s", m)
			}
		}
		for m := range have {
			if !wanted[m] {
				t.Errorf("%s has no guard", m)
			}
		}
	})
}

// TestServedClusterIPsHaveNoGuard: the rules accept packets to the ports in CLUSTER-IP before they look up the guards, because most packets are for
// ClusterIPs.
func TestServedClusterIPsHaveNoGuard(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := compiletest.Cluster(compiletest.Config(), compiletest.Services(t, "services"), compiletest.Around(t, "around")).Want()
		members := map[kernel.Member]bool{}
		for m := range w.Members {
			members[m] = true
		}
		for m := range members {
			family, guarded := strings.CutSuffix(m.Set, "-GUARDED")
			served := kernel.Member{Set: family + "-CLUSTER-IP", Element: m.Element}
			if guarded && members[served] {
				t.Errorf("%s has no effect, because the port is in %s", m, served.Set)
			}
		}
	})
}
