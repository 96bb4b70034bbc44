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
	"github.com/kube-ipvs/kube-ipvs/internal/view"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

type oneList map[model.ServiceID]*model.Service

func (l oneList) Changed() <-chan struct{} { return nil }
func (l oneList) Synced() bool             { return true }
func (l oneList) Take() model.Changes      { return model.Changes{Services: l} }

func serving(tb testing.TB, services int) *Agent {
	tb.Helper()
	cfg := Config{Compile: compiletest.Config(), AuditInterval: time.Hour}
	a := New(cfg, oneList(compiletest.Many(services, 10)), kerneltest.New(compile.Chains...), zap.NewNop())
	a.sync(context.Background())
	if a.reports.history.last == nil || a.reports.history.err != "" {
		tb.Fatalf("first sync: %+v, %s", a.reports.history.last, a.reports.history.err)
	}
	return a
}

func answering(tb testing.TB, a *Agent, q Query) (v *view.View, turns int) {
	tb.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		var err error
		if v, err = a.View(context.Background(), q); err != nil {
			tb.Error(err)
		}
	}()
	for {
		select {
		case <-done:
			return v, turns
		case take := <-a.background.requests:
			take()
			turns++
		}
	}
}

// A view of all Services costs the loop only one allocation per Service. The loop adds at most a few hundred Services
// between two syncs.
func TestViewCompilesNothing(t *testing.T) {
	const services = 3000
	a := serving(t, services)
	v, turns := answering(t, a, Query{All: true})
	if len(v.Services) != services || turns != 1+services/servicesAtATime {
		t.Errorf("got %d Services in %d turns", len(v.Services), turns)
	}
	first := testing.AllocsPerRun(5, func() { a.snapshot(time.Now(), Query{All: true}) })
	some := a.snapshot(time.Now(), Query{All: true}).Compiled[:servicesAtATime]
	part := testing.AllocsPerRun(5, func() { a.snapshotServices(some) })
	if most := max(first, part); most > servicesAtATime+100 {
		t.Errorf("a turn takes %.0f allocations", most)
	}
}

func TestServiceDeletedDuringView(t *testing.T) {
	a := serving(t, 10)
	s := a.snapshot(time.Now(), Query{All: true})
	gone := s.Compiled[0].Source().ID
	a.planner.cluster.Update(map[model.ServiceID]*model.Service{gone: nil}, want.NewTouched())
	if taken := a.snapshotServices(s.Compiled); len(taken) != 9 || len(s.Services) != 0 {
		t.Errorf("got %d Services, want 9", len(taken))
	}
}

func BenchmarkTurn(b *testing.B) {
	a := serving(b, 10_000)
	some := a.snapshot(time.Now(), Query{All: true}).Compiled
	b.Run("first", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			a.snapshot(time.Now(), Query{All: true})
		}
	})
	b.Run("part", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			a.snapshotServices(some[:servicesAtATime])
		}
	})
}

func BenchmarkView(b *testing.B) {
	a := serving(b, 10_000)
	b.ReportAllocs()
	for b.Loop() {
		answering(b, a, Query{All: true})
	}
}
