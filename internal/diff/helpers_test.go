package diff_test

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/diff/difftest"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

type tester interface {
	Helper()
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
}

func clusterOf(services ...*model.Service) *compile.Cluster {
	all := map[model.ServiceID]*model.Service{}
	for _, s := range services {
		all[s.ID] = s
	}
	return clusterWith(all)
}

func clusterWith(services map[model.ServiceID]*model.Service) *compile.Cluster {
	return compiletest.Cluster(compiletest.Config(), services, compiletest.At())
}

func anyWant(t *rapid.T, label string) *diff.Target { return anyWantOf(t, inet.Families, label) }

func anyWantOf(t *rapid.T, families []inet.Family, label string) *diff.Target {
	cfg := compiletest.Config()
	cfg.Families = families
	cfg.Binding = rapid.SampledFrom([]kernel.Binding{kernel.OnDevice, kernel.Routed}).Draw(t, "binding "+label)
	return diff.NewTarget(compiletest.Cluster(cfg, compiletest.Services(t, label), compiletest.Around(t, "around "+label)).Want())
}

func anyFamilies(t *rapid.T) []inet.Family {
	return rapid.SampledFrom([][]inet.Family{inet.Families, {inet.IPv4}, {inet.IPv6}}).Draw(t, "families")
}

// plan compares everything as the agent does, but without lookups.
func plan(w *diff.Target, have *kernel.State, opt diff.Options) diff.Plan {
	return diff.Decide(w, have, diff.Scope{All: true, Touched: want.NewTouched(), LookedUp: everything}, opt).Plan
}

func touchedPlan(w *diff.Target, have *kernel.State, touched *want.Touched) diff.Plan {
	w.Follow(touched)
	return diff.Decide(w, have, diff.Scope{Touched: touched, LookedUp: everything}, diff.Options{}).Plan
}

func everything(kernel.ServerKey) bool { return true }

func read() diff.Options { return diff.Options{Fresh: func(kernel.ServerKey) bool { return true }} }

// apply applies a plan one operation at a time. The kernel must accept each operation, and the resulting state must be safe for every
// packet.
func apply(t tester, fake *kerneltest.Fake, w *diff.Target, p diff.Plan) {
	t.Helper()
	checker := difftest.New(*w.Base()).Wanting(w).Since(fake.State())
	before := checker.Violations(fake.State())
	for _, op := range opsInParts(t, p, w) {
		keepsScheduler(t, fake.State(), w, op)
		if err := fake.Apply(context.Background(), []kernel.Op{op})[0]; err != nil {
			t.Fatalf("the kernel refused %s: %v\nplan:\n%s", op, err, text(p))
		}
		state := fake.State()
		if wrong := checker.Step(op, state); wrong != "" {
			t.Fatalf("I7: %s: %s\nplan:\n%s", op, wrong, text(p))
		}
		for _, v := range checker.Violations(state) {
			if !slices.Contains(before, v) {
				t.Fatalf("I7: after %s: %s\nplan:\n%s", op, v, text(p))
			}
		}
	}
	if left := checker.Violations(fake.State()); len(left) > 0 {
		t.Errorf("I7: after the whole plan: %s", strings.Join(left, "; "))
	}
}

// The part size varies between plans.
func opsInParts(t tester, p diff.Plan, w *diff.Target) (ops []kernel.Op) {
	t.Helper()
	size := 1 << (p.Len() % 8)
	parts := p.Parts(size, w, nil)
	for _, part := range parts {
		if len(parts) > 1 && part.Len() > size {
			t.Fatalf("a part has %d operations, not %d", part.Len(), size)
		}
		ops = slices.AppendSeq(ops, part.All)
	}
	if len(ops) != p.Len() {
		t.Fatalf("the parts of a plan of %d operations have %d operations", p.Len(), len(ops))
	}
	return ops
}

// keepsScheduler checks that no plan replaces a scheduler with an equivalent scheduler, because the kernel refuses new connections during
// the change.
func keepsScheduler(t tester, have *kernel.State, w *diff.Target, op kernel.Op) {
	t.Helper()
	server, ok := op.Object.(kernel.Server)
	if !ok || op.Verb != kernel.Update {
		return
	}
	if now := have.Servers[server.Key].Scheduler; now != server.Scheduler && now == w.Server(server.Key).Alike {
		t.Fatalf("%s, although the scheduler %s is equivalent", op, now)
	}
}

func converge(t tester, fake *kerneltest.Fake, w *diff.Target, opt diff.Options) diff.Plan {
	t.Helper()
	p := plan(w, fake.State(), opt)
	apply(t, fake, w, p)
	return p
}

// start brings a fake to the wanted state without checking the steps.
func start(t tester, w *diff.Target) *kerneltest.Fake {
	t.Helper()
	fake := newFake()
	ops := slices.Collect(plan(w, fake.State(), read()).All)
	for i, err := range fake.Apply(context.Background(), ops) {
		if err != nil {
			t.Fatalf("the kernel refused %s: %v", ops[i], err)
		}
	}
	return fake
}

func newFake() *kerneltest.Fake { return kerneltest.New(compile.Chains...) }

func text(p diff.Plan) string {
	var b strings.Builder
	inspect.Plan(&b, p, kernel.IPVSWithIPTables)
	return b.String()
}

func commands(p diff.Plan) []string {
	list := []string{}
	for op := range p.All {
		list = append(list, op.String())
	}
	return list
}

func tcp(addr string) kernel.ServerKey {
	return kernel.ServerKey{Addr: netip.MustParseAddrPort(addr), Protocol: inet.TCP}
}

func serverAt(key kernel.ServerKey) kernel.Server {
	return kernel.Server{Key: key, Scheduler: "rr", MaskBits: uint8(key.Family().Bits())}
}

func to(addr string, weight uint32) kernel.Destination {
	return kernel.Destination{Addr: netip.MustParseAddrPort(addr), Weight: weight}
}

func bound(addr string) kernel.BoundAddress {
	return kernel.BoundAddress{Addr: netip.MustParseAddr(addr)}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func touchedNone() *want.Touched { return want.NewTouched() }
