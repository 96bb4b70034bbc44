package kerneltest

import (
	"net/netip"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Diff describes how have differs from want. The text is empty if the states are equal.
func Diff(want, have *kernel.State) string { return diffValues(want, have) }

func diffValues(want, have any) string {
	return cmp.Diff(want, have,
		cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
		cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
		cmpopts.EquateEmpty(),
		cmpopts.AcyclicTransformer("present", presentFamilies),
		cmpopts.AcyclicTransformer("present", presentJumps),
	)
}

// A reader may omit a family without our rules, and a built-in chain without our jumps. cmpopts.IgnoreMapEntries would also ignore an entry
// that is empty in only one of the two states.
func presentFamilies(all map[inet.Family]kernel.RulesView) map[inet.Family]kernel.RulesView {
	present := map[inet.Family]kernel.RulesView{}
	for family, v := range all {
		if len(v.Chains) > 0 || len(presentJumps(v).Jumps) > 0 {
			present[family] = v
		}
	}
	return present
}

func presentJumps(v kernel.RulesView) kernel.RulesView {
	present := kernel.RulesView{Chains: v.Chains, Jumps: map[kernel.ChainID][]string{}}
	for id, tags := range v.Jumps {
		if len(tags) > 0 {
			present.Jumps[id] = tags
		}
	}
	return present
}
