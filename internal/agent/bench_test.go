package agent

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

type oneService struct{ service *model.Service }

func (s *oneService) Changed() <-chan struct{} { return nil }
func (s *oneService) Synced() bool             { return true }
func (s *oneService) Take() model.Changes {
	return model.Changes{Services: map[model.ServiceID]*model.Service{s.service.ID: s.service}}
}

type rollout struct {
	*Agent
	source *oneService
	pods   []*model.Endpoint
	slices map[int]*model.EndpointSlice
}

func newRollout(tb testing.TB, pods int) *rollout {
	tb.Helper()
	cfg := Config{Compile: compiletest.Config(), AuditInterval: time.Hour, DrainInterval: time.Hour}
	source := &oneService{compiletest.Service("web", "10.96.0.1")}
	r := &rollout{New(cfg, source, kerneltest.New(compile.Chains...), zap.NewNop()), source, nil, map[int]*model.EndpointSlice{}}
	for i := range pods {
		e := compiletest.Ready(scattered(i))
		r.pods = append(r.pods, &e)
	}
	for first := 0; first < pods; first += podsPerSlice {
		r.put(first)
	}
	r.sync(context.Background())
	return r
}

const podsPerSlice = 100

// scattered returns the address of the n-th pod. As in a cluster with many nodes, the addresses are not in order.
func scattered(n int) netip.Addr { return compiletest.Pod(n * 7919 % (1 << 20)) }

// run replaces every pod as the EndpointSlice controller does: the new pod appears and becomes ready, then the old
// pod terminates and is removed.
func (r *rollout) run(tb testing.TB) {
	tb.Helper()
	for old := range r.pods {
		fresh := compiletest.Ready(scattered(len(r.pods)))
		fresh.Ready, fresh.Serving = false, false
		r.pods = append(r.pods, &fresh)
		r.change(len(r.pods)-1, func(*model.Endpoint) {})
		r.change(len(r.pods)-1, func(e *model.Endpoint) { e.Ready, e.Serving = true, true })
		r.change(old, func(e *model.Endpoint) { e.Ready, e.Terminating = false, true })
		r.pods[old] = nil
		r.change(old, nil)
	}
	if r.reports.history.err != "" {
		tb.Fatal(r.reports.history.err)
	}
}

func (r *rollout) change(pod int, change func(*model.Endpoint)) {
	if change != nil {
		change(r.pods[pod])
	}
	r.put(pod)
	r.sync(context.Background())
}

func (r *rollout) put(pod int) {
	number := pod / podsPerSlice
	slice := *compiletest.Service("web", "10.96.0.1").Slices[0]
	slice.Name = fmt.Sprint("web-", number)
	for _, e := range r.pods[number*podsPerSlice : min((number+1)*podsPerSlice, len(r.pods))] {
		if e != nil {
			slice.Endpoints = append(slice.Endpoints, *e)
		}
	}
	slices.SortFunc(slice.Endpoints, func(a, b model.Endpoint) int { return a.Addr.Compare(b.Addr) })
	if r.slices[number] = &slice; len(slice.Endpoints) == 0 {
		delete(r.slices, number)
	}
	svc := *r.source.service
	svc.Slices = nil
	for _, number := range slices.Sorted(maps.Keys(r.slices)) {
		svc.Slices = append(svc.Slices, r.slices[number])
	}
	r.source.service = &svc
}

// Each change copies the Service's endpoints a few times, but checks, sorts and compares only those of one slice (see
// TestOneChangedSliceIsVisited and TestClocksFollowDestinations).
func TestRolloutAllocatesLittle(t *testing.T) {
	const pods, changes = 250, 4 * 250
	r := newRollout(t, pods)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r.run(t)
	runtime.ReadMemStats(&after)
	if n := (after.Mallocs - before.Mallocs) / changes; n > 200 {
		t.Errorf("one change takes %d allocations", n)
	}
	if n := (after.TotalAlloc - before.TotalAlloc) / changes / pods; n > 370 {
		t.Errorf("one change allocates %d bytes per endpoint", n)
	}
	if n := r.planner.draining.Count(); n != pods {
		t.Errorf("%d endpoints drain", n)
	}
}

func BenchmarkRollout(b *testing.B) {
	for _, pods := range []int{125, 250, 500, 1000} {
		b.Run(fmt.Sprint(pods), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				r := newRollout(b, pods)
				b.StartTimer()
				r.run(b)
			}
		})
	}
}

func TestColdStartAllocatesLittle(t *testing.T) {
	const services = 1000
	many := oneList(compiletest.Many(services, 10))
	if n := testing.AllocsPerRun(1, func() { coldStart(t, many) }) / services; n > 70 {
		t.Errorf("%.0f allocations for each Service", n)
	}
}

func coldStart(tb testing.TB, services oneList) {
	tb.Helper()
	cfg := Config{Compile: compiletest.Config(), AuditInterval: time.Hour}
	a := New(cfg, services, instant{kerneltest.New(compile.Chains...)}, zap.NewNop())
	a.sync(context.Background())
	if a.reports.history.err != "" {
		tb.Fatal(a.reports.history.err)
	}
}

func BenchmarkColdStart(b *testing.B) {
	for _, services := range []int{1_000, 10_000, 50_000} {
		b.Run(fmt.Sprint(services), func(b *testing.B) {
			many := oneList(compiletest.Many(services, 10))
			b.ReportAllocs()
			for b.Loop() {
				coldStart(b, many)
			}
		})
	}
}

type instant struct{ *kerneltest.Fake }

func (instant) Apply(_ context.Context, ops []kernel.Op) []error { return make([]error, len(ops)) }
