package agent_test

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/diff/difftest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// watcher sees all inputs of an agent, so that the checks after every operation know the current wanted state. It is nil in tests without
// these checks.
type watcher struct {
	cluster *compile.Cluster
	// before is the kernel's state when the sync began.
	before *kernel.State
	// begun are the violations at the start of the sync, when the wanted state has just changed.
	begun []string
	// read is true after the agent has read the kernel.
	read bool
	// taken are the changed Services that the agent has taken and not compiled yet: it first reads what decides about them.
	taken services
}

func newWatcher(cfg compile.Config) *watcher { return &watcher{cluster: compile.NewCluster(cfg)} }

// check returns the checker for the wanted state.
func (w *world) check() *difftest.Checker {
	if w.watcher == nil {
		return w.steps
	}
	return w.steps.Wanting(w.watcher.cluster.Want()).Since(w.watcher.before)
}

// mirror also applies an input of the agent to the watcher.
func (w *world) mirror(apply func(*compile.Cluster)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.watcher == nil {
		return
	}
	apply(w.watcher.cluster)
	w.begins()
}

// compiles tells the watcher that the agent now compiles the Services that it has taken.
func (w *world) compiles() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.watcher == nil || w.watcher.taken == nil {
		return
	}
	w.watcher.cluster.Update(w.watcher.taken, want.NewTouched())
	w.watcher.taken = nil
	w.begins()
}

// begins records the state in which a sync begins to write.
func (w *world) begins() {
	w.watcher.before = w.fake.State()
	w.watcher.begun = w.check().Violations(w.watcher.before)
}

// watchedSource is the source as seen by the agent.
type watchedSource struct {
	*source
	w *world
}

func (s watchedSource) Take() model.Changes {
	changes := s.source.Take()
	s.w.mirror(func(c *compile.Cluster) {
		taken := s.w.watcher.taken
		if s.w.watcher.read && taken != nil { // the last sync has compiled them, and had nothing to write
			c.Update(taken, want.NewTouched())
			taken = nil
		}
		if taken == nil {
			taken = services{}
		}
		maps.Copy(taken, changes.Services)
		s.w.watcher.taken = taken
		c.UpdateNodes(changes.Nodes, want.NewTouched())
		if changes.APIServer != nil {
			c.SetAPIServer(changes.APIServer, want.NewTouched())
		}
	})
	return changes
}

// watchedKernel is the kernel as seen by the agent.
type watchedKernel struct {
	agent.Kernel
	w *world
}

func (k watchedKernel) NodeAddresses(ctx context.Context) ([]netip.Addr, error) {
	addrs, err := k.Kernel.NodeAddresses(ctx)
	if err == nil && !k.w.losesAddresses(addrs) {
		k.w.mirror(func(c *compile.Cluster) { c.SetAddresses(addrs, want.NewTouched()) })
	}
	return addrs, err
}

// losesAddresses reports whether the agent still waits before it accepts that the node has no address.
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
		k.w.mirror(func(c *compile.Cluster) { c.SetNetwork(network, want.NewTouched()) })
	}
	return network, err
}

func (k watchedKernel) Listeners(ctx context.Context) (kernel.Listeners, error) {
	listeners, err := k.Kernel.Listeners(ctx)
	if err == nil {
		k.w.mirror(func(c *compile.Cluster) { c.SetListeners(listeners, want.NewTouched()) })
	}
	return listeners, err
}

func (k watchedKernel) Read(ctx context.Context) (*kernel.State, error) {
	k.w.compiles()
	state, err := k.Kernel.Read(ctx)
	if err == nil {
		k.w.mirror(func(*compile.Cluster) { k.w.watcher.read = true })
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

// A Lookup before the first Read asks for what an earlier agent left.
func (k watchedKernel) Lookup(ctx context.Context, keys []kernel.ServerKey) (map[kernel.ServerKey]kernel.ObservedServer, error) {
	if k.w.watcher != nil && k.w.watcher.read {
		k.w.compiles()
	}
	found, err := k.Kernel.Lookup(ctx, keys)
	if err == nil {
		k.w.mirror(func(c *compile.Cluster) {
			if !k.w.watcher.read {
				unsettled, _, _ := c.Unsettled(func(yield func(*model.Service) bool) {
					for svc := range maps.Values(k.w.watcher.taken) {
						if !yield(svc) {
							return
						}
					}
					c.Sources(yield)
				})
				c.SetLeft(slices.Values(slices.DeleteFunc(unsettled, func(s compile.FrontendKey) bool {
					_, exists := found[s.Key]
					return !exists
				})), want.NewTouched())
			}
		})
	}
	return found, err
}

// blame permits the violations that a failed operation causes.
func (w *world) blame(op kernel.Op) {
	if m, ok := op.Object.(kernel.Member); ok && w.watcher != nil {
		w.watcher.begun = append(w.watcher.begun, difftest.KeptOut(m), difftest.Interrupted(m))
	}
}
