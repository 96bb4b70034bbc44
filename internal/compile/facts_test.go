package compile_test

import (
	"net/netip"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// An affected Service is compiled once per sync, even if several facts affect it.
func TestManyFactsCompileOnce(t *testing.T) {
	many := compiletest.Many(500, 10)
	settings := compiletest.Config().Settings
	here := func(zone string) map[string]*model.Node {
		return map[string]*model.Node{compiletest.Node: {Name: compiletest.Node, Zone: zone, Addresses: home.Addresses}}
	}
	other := append([]netip.Addr{netip.MustParseAddr("192.0.2.77")}, home.Addresses...)
	network := kernel.Network{netip.MustParseAddr("192.0.2.254"): {Kind: kernel.Gateway}}
	cost := func(facts ...func(turn int, f *compile.Facts)) float64 {
		c, turn := compiletest.Cluster(compiletest.Config(), many, home), 0
		return testing.AllocsPerRun(4, func() {
			var f compile.Facts
			for _, fact := range facts {
				fact(turn, &f)
			}
			turn++
			c.Apply(f, want.NewTouched())
		})
	}
	one := cost(func(_ int, f *compile.Facts) { f.Settings = &settings })
	all := cost(
		func(_ int, f *compile.Facts) { f.Settings = &settings },
		func(turn int, f *compile.Facts) { f.Addresses = [][]netip.Addr{other, home.Addresses}[turn%2] },
		func(turn int, f *compile.Facts) { f.Network = []kernel.Network{network, {}}[turn%2] },
		func(turn int, f *compile.Facts) { f.Nodes = here([]string{"a", "b"}[turn%2]) },
		func(turn int, f *compile.Facts) { f.Schedulers = map[string]bool{"lc": turn%2 == 0} },
		func(_ int, f *compile.Facts) { f.Services = many },
	)
	t.Logf("%.0f allocations for one fact that affects every Service, %.0f for all facts", one, all)
	if all > 1.2*one {
		t.Errorf("%.0f allocations for all facts, %.0f for one", all, one)
	}
}
