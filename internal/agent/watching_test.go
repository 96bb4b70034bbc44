package agent_test

import (
	"context"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/diff/difftest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// watcher records all inputs of an agent, so that the checks after every operation use the current wanted state.
type watcher struct {
	cluster *compile.Cluster
	before  *kernel.State
	begun   []string
	reading bool // the kernel has been read since the last Take
	// learned is true while the agent has facts that it has not compiled yet.
	learned bool
}

func newWatcher(cfg compile.Config) *watcher { return &watcher{cluster: compile.NewCluster(cfg)} }

func (w *world) check() *difftest.Checker {
	if w.watcher == nil {
		return w.steps
	}
	return w.steps.Wanting(diff.NewTarget(w.watcher.cluster.Want())).Since(w.watcher.before)
}

func (w *world) learn(f compile.Facts) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.watcher != nil {
		w.watcher.cluster.Learn(f)
		w.watcher.learned = true
	}
}

func (w *world) forgetListeners() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.watcher != nil {
		w.watcher.cluster.ForgetListeners()
		w.watcher.learned = true
	}
}

func (w *world) compiles() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.watcher == nil || !w.watcher.learned {
		return
	}
	w.watcher.cluster.Compile(want.NewTouched())
	w.watcher.learned = false
	w.begins()
}

func (w *world) begins() {
	w.watcher.before = w.fake.State()
	w.watcher.begun = w.check().Violations(w.watcher.before)
}

type watchedSource struct {
	*source
	w *world
}

func (s watchedSource) Take() model.Changes {
	if w := s.w.watcher; w != nil {
		if s.w.agent.KnowsKernel() { // the last sync compiled its facts, even if it had nothing to write
			s.w.compiles()
		}
		w.reading = false
	}
	changes := s.source.Take()
	s.w.learn(compile.Facts{Nodes: changes.Nodes, Services: changes.Services, APIServer: changes.APIServer, Version: changes.Version})
	return changes
}

type watchedKernel struct {
	agent.Kernel
	w *world
}

func (k watchedKernel) NodeAddresses(ctx context.Context) ([]netip.Addr, error) {
	addrs, err := k.Kernel.NodeAddresses(ctx)
	if err == nil && !k.w.losesAddresses(addrs) {
		k.w.learn(compile.Facts{Addresses: append([]netip.Addr{}, addrs...)})
	}
	return addrs, err
}

// losesAddresses reports whether the agent still uses the addresses that the node has just lost.
func (w *world) losesAddresses(addrs []netip.Addr) bool {
	if len(addrs) > 0 || w.lost.IsZero() && !w.hadAddresses {
		w.hadAddresses, w.lost = len(addrs) > 0, time.Time{}
		return false
	}
	if w.lost.IsZero() {
		w.lost = time.Now()
	}
	if time.Since(w.lost) < agent.HoldAddresses {
		return true
	}
	w.hadAddresses, w.lost = false, time.Time{}
	return false
}

func (k watchedKernel) Network(ctx context.Context) (kernel.Network, error) {
	network, err := k.Kernel.Network(ctx)
	if err == nil {
		k.w.learn(compile.Facts{Network: orEmpty(network)})
	}
	return network, err
}

func (k watchedKernel) Listeners(ctx context.Context) (kernel.Listeners, error) {
	listeners, err := k.Kernel.Listeners(ctx)
	if err == nil {
		k.w.learn(compile.Facts{Listeners: orEmpty(listeners)})
	} else {
		k.w.forgetListeners()
	}
	return listeners, err
}

func (k watchedKernel) Read(ctx context.Context) (*kernel.State, error) {
	k.w.compiles()
	state, err := k.Kernel.Read(ctx)
	if err == nil && k.w.watcher != nil {
		k.w.watcher.reading = true
	}
	return state, err
}

func (k watchedKernel) HasDevice(ctx context.Context) (bool, error) {
	k.w.compiles()
	return k.Kernel.HasDevice(ctx)
}

func (k watchedKernel) Apply(ctx context.Context, ops []kernel.Op) []error {
	k.w.compiles()
	return k.Kernel.Apply(ctx, ops)
}

// A Lookup before the kernel's state is known looks for virtual servers that an earlier agent left.
func (k watchedKernel) Lookup(ctx context.Context, keys []kernel.ServerKey) (map[kernel.ServerKey]kernel.ObservedServer, error) {
	first := k.w.watcher != nil && !k.w.agent.KnowsKernel() && !k.w.watcher.reading
	if !first {
		k.w.compiles()
	}
	found, err := k.Kernel.Lookup(ctx, keys)
	if err == nil && first {
		unsettled, _, _ := k.w.watcher.cluster.Unsettled(true)
		k.w.learn(compile.Facts{Left: slices.DeleteFunc(unsettled, func(s compile.FrontendKey) bool {
			_, exists := found[s.Key]
			return !exists
		})})
	}
	return found, err
}

// orEmpty replaces nil, which means unknown, with an empty map.
func orEmpty[M ~map[K]V, K comparable, V any](m M) M {
	if m == nil {
		return M{}
	}
	return m
}

func (w *world) blame(op kernel.Op) {
	if m, ok := op.Object.(kernel.Member); ok && w.watcher != nil {
		w.watcher.begun = append(w.watcher.begun, difftest.KeptOut(m), difftest.Interrupted(m))
	}
}

// A new agent reads the kernel but cannot look up a virtual server. If its next sync cannot read the node's addresses, it
// compiles nothing. If the watcher compiled the new Service then, it would not know that the external IP is the node's,
// where a process already listens on the port.
func TestWatcherCompilesWithTheAgent(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.put(web("10.244.0.1"))
		w.fake.FailNext(kernel.KindServer, syscall.ENOMEM) // leaves an owner record, so the next agent looks up the virtual server
		w.start()
		w.fake.FailNextRead(nil)
		w.fake.FailNextRead(syscall.EBUSY)
		w.fake.FailNextNodeAddresses(nil)
		w.fake.FailNextNodeAddresses(syscall.EBUSY)
		w.restart()
		if w.agent.KnowsKernel() {
			w.Error("the lookup did not fail")
		}
		w.fake.SetListeners(tcp("0.0.0.0:80"))
		svc := compiletest.Service("new", "10.96.0.2", "10.244.0.1")
		svc.ExternalIPs = []netip.Addr{netip.MustParseAddr("203.0.113.2")}
		w.put(svc)
		around := compiletest.At("192.0.2.1", "fd00:2::1", "203.0.113.2")
		around.Listeners = kernel.Listeners{tcp("0.0.0.0:80"): {}}
		w.move(around)
		w.converged()
	})
}
