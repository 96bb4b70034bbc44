package diff_test

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// A target that follows changes of Services and kernel state equals a newly created target.
func TestTargetFollows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := compile.NewCluster(compiletest.Config())
		target, services, ever := diff.NewTarget(c.Want()), map[model.ServiceID]*model.Service{}, map[kernel.ServerKey]struct{}{}
		for range rapid.IntRange(1, 6).Draw(t, "steps") {
			next, touched := compiletest.Services(t, "next"), want.NewTouched()
			c.Apply(compile.Facts{Services: compiletest.Between(services, next)}, touched)
			services = next
			target.Follow(touched)
			for key := range c.Want().Servers {
				ever[key] = struct{}{}
			}
			have := otherServers(t, ever)
			scope := diff.Scope{All: rapid.Bool().Draw(t, "all"), Touched: touched, LookedUp: everything}
			diff.Decide(target, have, scope, diff.Options{})
			if !scope.All { // untouched objects are unchanged
				continue
			}
			fresh := diff.NewTarget(c.Want())
			diff.Decide(fresh, have, diff.Scope{All: true, Touched: want.NewTouched(), LookedUp: everything}, diff.Options{})
			same(t, target, fresh)
		}
	})
}

// otherServers returns virtual servers of other programs, or of an agent that has lost its ledger.
func otherServers(t *rapid.T, keys map[kernel.ServerKey]struct{}) *kernel.State {
	have := newFake().State()
	for _, key := range slices.SortedFunc(maps.Keys(keys), kernel.ServerKey.Compare) {
		if rapid.IntRange(0, 3).Draw(t, "exists") > 0 {
			continue
		}
		have.Servers[key] = kernel.ObservedServer{Server: kernel.Server{Key: key, Scheduler: "rr"}}
		if rapid.Bool().Draw(t, "bound") {
			have.Addresses[key.Addr.Addr()] = kernel.OnDevice
		}
	}
	return have
}

func same(t *rapid.T, a, b *diff.Target) {
	lingering := func(w *diff.Target) []kernel.ServerKey {
		return slices.SortedFunc(w.Lingering(), kernel.ServerKey.Compare)
	}
	if !slices.Equal(a.Keys(), b.Keys()) || !slices.Equal(lingering(a), lingering(b)) || a.Count() != b.Count() || !maps.Equal(a.Foreign(), b.Foreign()) {
		t.Fatalf("virtual servers %v, foreign %v; newly created target: %v, foreign %v", a.Keys(), a.Foreign(), b.Keys(), b.Foreign())
	}
	members := func(w *diff.Target) []kernel.Member { return slices.SortedFunc(w.Members, kernel.Member.Compare) }
	if !slices.Equal(members(a), members(b)) {
		t.Fatalf("members %v; newly created target: %v", members(a), members(b))
	}
	for _, w := range [][2]*diff.Target{{a, b}, {b, a}} {
		for addr := range w[0].Addresses {
			if !w[1].HasAddress(addr) {
				t.Fatalf("only one target has the address %s", addr)
			}
		}
	}
}
