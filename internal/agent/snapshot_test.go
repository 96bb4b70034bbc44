package agent

import (
	"context"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// oneList is a source with Services that never change.
type oneList map[model.ServiceID]*model.Service

func (l oneList) Changed() <-chan struct{} { return nil }
func (l oneList) Synced() bool             { return true }
func (l oneList) Take() model.Changes      { return model.Changes{Services: l} }

// serving is an agent after its first sync of many Services with ten endpoints each.
func serving(tb testing.TB, services int) *Agent {
	tb.Helper()
	cfg := Config{Compile: compiletest.Config(), AuditInterval: time.Hour}
	a := New(cfg, oneList(compiletest.Many(services, 10)), kerneltest.New(compile.Chains...), zap.NewNop())
	a.sync(context.Background())
	if a.history.last == nil || a.history.err != "" {
		tb.Fatalf("first sync: %+v, %s", a.history.last, a.history.err)
	}
	return a
}

// TestLookingCompilesNothing counts what a view of everything costs the writer's goroutine: two lists, and one list for each Service.
func TestLookingCompilesNothing(t *testing.T) {
	const services = 1000
	a := serving(t, services)
	allocations := testing.AllocsPerRun(3, func() { a.snapshot(time.Now(), Query{All: true}) })
	if allocations > services+100 {
		t.Errorf("a snapshot of %d Services takes %.0f allocations", services, allocations)
	}
}

// BenchmarkSnapshot is what the writer's goroutine does for a view of everything, BenchmarkView the rest of it.
func BenchmarkSnapshot(b *testing.B) {
	a := serving(b, 10_000)
	b.ReportAllocs()
	for b.Loop() {
		a.snapshot(time.Now(), Query{All: true})
	}
}

func BenchmarkView(b *testing.B) {
	s := serving(b, 10_000).snapshot(time.Now(), Query{All: true})
	b.ReportAllocs()
	for b.Loop() {
		s.View()
	}
}
