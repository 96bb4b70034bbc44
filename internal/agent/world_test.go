package agent_test

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/diff/difftest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// seeds is the number of fault sequences per test. Set it to a few hundred before merging changes to the loop.
var seeds = flag.Uint64("seeds", 3, "number of fault sequences per test")

// rounds multiplies the changes of TestRandomChangesConverge.
var rounds = flag.Uint64("rounds", 1, "number of times that each sequence of random changes continues")

const (
	auditInterval = time.Minute
	drainInterval = 5 * time.Second
	drainTimeout  = 4 * time.Minute
)

type services = map[model.ServiceID]*model.Service

type source struct {
	mu      sync.Mutex
	changed chan struct{}
	synced  bool
	pending services
	nodes   map[string]*model.Node
	api     []netip.AddrPort
	version model.Version
}

func newSource() *source {
	return &source{changed: make(chan struct{}, 1), synced: true, pending: services{}, nodes: map[string]*model.Node{}}
}

func (s *source) Changed() <-chan struct{} { return s.changed }

func (s *source) Synced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.synced
}

func (s *source) Take() model.Changes {
	s.mu.Lock()
	defer s.mu.Unlock()
	changes := model.Changes{Services: s.pending, Nodes: s.nodes, APIServer: s.api, Version: s.version}
	s.pending, s.nodes, s.api, s.version = services{}, map[string]*model.Node{}, nil, model.Version{}
	return changes
}

func (s *source) put(changes services) {
	s.mu.Lock()
	maps.Copy(s.pending, changes)
	s.mu.Unlock()
	s.wake()
}

func (s *source) putNodes(changes map[string]*model.Node) {
	s.mu.Lock()
	maps.Copy(s.nodes, changes)
	s.mu.Unlock()
	s.wake()
}

func (s *source) putAPIServer(addrs ...netip.AddrPort) {
	s.mu.Lock()
	s.api = addrs
	s.mu.Unlock()
	s.wake()
}

func (s *source) putVersion(v model.Version) {
	s.mu.Lock()
	s.version = v
	s.mu.Unlock()
	s.wake()
}

func (s *source) wake() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// world is an agent with a cluster and a kernel. Tests run in a synctest bubble with virtual time.
type world struct {
	*testing.T
	fake         *kerneltest.Fake
	agent        *agent.Agent // the running agent
	kernel       agent.Kernel // nil means the fake
	faults       kerneltest.Faults
	source       *source
	services     services
	around       compiletest.Surroundings
	config       agent.Config
	logs         *observer.ObservedLogs
	stop         func()
	hadAddresses bool
	lost         time.Time
	moved        chan struct{}

	mu         sync.Mutex
	reports    []agent.Report
	steps      *difftest.Checker
	watcher    *watcher
	unwatched  bool
	observed   func()
	allowed    []string // violations caused by other programs
	mayUnclaim bool
}

// newWorld returns a world in which one kernel call in ten fails. It starts no agent.
func newWorld(t *testing.T, seed uint64) *world {
	w := &world{
		T:        t,
		fake:     kerneltest.New(compile.Chains...),
		services: services{},
		around:   compiletest.At("192.0.2.1", "fd00:2::1"),
		config: agent.Config{
			Compile:       compiletest.Config(),
			AuditInterval: auditInterval,
			DrainInterval: drainInterval,
			DrainTimeout:  drainTimeout,
		},
		steps: difftest.New(compile.Base(compiletest.Config())),
		moved: make(chan struct{}, 1),
	}
	w.config.AddressesChanged = w.moved
	w.fail(seed)
	w.fake.SetNodeAddresses(w.around.Addresses...)
	w.fake.OnOp(w.checkStep)
	return w
}

func (w *world) fail(seed uint64) {
	w.faults = kerneltest.DefaultFaults(seed)
	w.fake.SetFaults(w.faults)
}

func (w *world) calm() {
	w.faults = kerneltest.Faults{}
	w.fake.SetFaults(w.faults)
}

func (w *world) checkStep(op kernel.Op, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	state, checker := w.fake.View(), w.check()
	if err != nil {
		w.blame(op)
	} else if !w.mayUnclaim {
		if wrong := checker.Step(op, state); wrong != "" {
			w.Errorf("I7: %s: %s", op, wrong)
		}
	}
	var begun []string
	if w.watcher != nil {
		begun = w.watcher.begun
	}
	for _, v := range checker.Violations(state) {
		if !slices.Contains(w.allowed, v) && !slices.Contains(begun, v) {
			w.Errorf("I7: after %s: %s", op, v)
			w.allowed = append(w.allowed, v)
		}
	}
}

func (w *world) damage(change func(*kerneltest.Fake) error) {
	w.Helper()
	w.fake.SetFaults(kerneltest.Faults{}) // the other program's operations never fail
	if err := change(w.fake); err != nil {
		w.Fatalf("damage: %v", err)
	}
	w.fake.SetFaults(w.faults)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.allowed = w.check().Violations(w.fake.State())
}

func (w *world) start() {
	w.source = newSource()
	w.run()
}

// startUnsynced starts an agent whose source has not delivered its initial list.
func (w *world) startUnsynced() {
	w.source = newSource()
	w.source.synced = false
	w.run()
}

func (w *world) run() {
	core, logs := observer.New(zap.InfoLevel)
	w.logs = logs
	w.source.pending, w.source.nodes = maps.Clone(w.services), maps.Clone(w.around.Nodes)
	config := w.config
	w.hadAddresses, w.lost = false, time.Time{}
	if !w.unwatched {
		w.watcher = newWatcher(config.Compile)
	}
	config.Observe = func(r agent.Report) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.reports = append(w.reports, r); w.observed != nil {
			w.observed()
		}
	}
	if w.kernel == nil {
		w.kernel = w.fake
	}
	w.agent = agent.New(config, watchedSource{w.source, w}, watchedKernel{w.kernel, w}, zap.New(core))
	ctx, cancel := context.WithCancel(context.Background())
	done, running := make(chan struct{}), w.agent
	go func() {
		defer close(done)
		running.Run(ctx)
	}()
	w.stop = func() {
		cancel()
		<-done
	}
	synctest.Wait()
}

func (w *world) restart() {
	w.stop()
	w.takeReports()
	w.fake.TakeCounts()
	w.start()
}

func (w *world) put(changed ...*model.Service) {
	changes := services{}
	for _, svc := range changed {
		changes[svc.ID] = svc
	}
	w.change(changes)
}

func (w *world) remove(names ...string) {
	changes := services{}
	for _, name := range names {
		changes[model.ServiceID{Namespace: "default", Name: name}] = nil
	}
	w.change(changes)
}

func (w *world) change(changes services) {
	for id, svc := range changes {
		if w.services[id] = svc; svc == nil {
			delete(w.services, id)
		}
	}
	if w.source != nil {
		w.source.put(changes)
		synctest.Wait()
	}
}

func (w *world) move(to compiletest.Surroundings) {
	w.fake.SetNodeAddresses(to.Addresses...)
	changes := compiletest.NodesBetween(w.around.Nodes, to.Nodes)
	w.mu.Lock() // the watcher reads w.services when a timer wakes the agent
	w.around = to
	w.mu.Unlock()
	if w.source == nil {
		return
	}
	if w.moved != nil {
		select {
		case w.moved <- struct{}{}:
		default: // a notification is pending
		}
	}
	w.source.putNodes(changes)
	synctest.Wait()
}

func (w *world) sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (w *world) audit() { w.sleep(auditInterval + time.Second) }

func (w *world) takeReports() []agent.Report {
	w.mu.Lock()
	defer w.mu.Unlock()
	reports := w.reports
	w.reports = nil
	return reports
}

func (w *world) lastReport() agent.Report {
	w.Helper()
	reports := w.takeReports()
	if len(reports) == 0 {
		w.Fatal("there was no sync")
	}
	return reports[len(reports)-1]
}

// ideal returns the wanted state of the kernel. The functions in the argument with create the foreign objects.
func ideal(t *testing.T, all services, in compiletest.Surroundings, with ...func(*kerneltest.Fake) error) string {
	t.Helper()
	return idealOver(t, kernel.NewState(), all, in, with...).Dump()
}

// idealOver is like ideal, but an existing virtual server keeps its scheduler if that is equivalent to the wanted one.
func idealOver(t *testing.T, existing *kernel.State, all services, in compiletest.Surroundings, with ...func(*kerneltest.Fake) error) *kerneltest.Fake {
	t.Helper()
	cluster := compiletest.Cluster(compiletest.Config(), all, in)
	fake := kerneltest.New(compile.Chains...)
	for _, change := range with {
		if err := change(fake); err != nil {
			t.Fatal(err)
		}
	}
	target := diff.NewTarget(cluster.Want())
	scope := diff.Scope{All: true, Touched: want.NewTouched(), LookedUp: func(kernel.ServerKey) bool { return true }}
	plan := diff.Decide(target, fake.State(), scope, diff.Options{Fresh: scope.LookedUp}).Plan
	ops := slices.Collect(plan.All)
	for i, op := range ops {
		if server, ok := op.Object.(kernel.Server); ok {
			ops[i].Object = cluster.Want().Servers[server.Key].Over(existing.Servers[server.Key].Server)
		}
	}
	for i, err := range fake.Apply(context.Background(), ops) {
		if err != nil {
			t.Fatalf("%s: %v", ops[i], err)
		}
	}
	return fake
}

func (w *world) converged(with ...func(*kerneltest.Fake) error) {
	w.Helper()
	w.calm()
	w.audit()
	w.sleep(drainInterval)
	w.is(with...)
}

func (w *world) is(with ...func(*kerneltest.Fake) error) {
	w.Helper()
	around := w.around
	if w.watcher != nil {
		w.compiles()
		around.Left = compiletest.Claimed(w.watcher.cluster)
	}
	if d := cmp.Diff(lines(idealOver(w.T, w.fake.State(), w.services, around, with...).Dump()), lines(w.fake.Dump())); d != "" {
		w.Errorf("kernel (-want +have):\n%s", d)
	}
}

func lines(dump string) []string { return strings.Split(dump, "\n") }

func (w *world) has(text string) bool { return strings.Contains(w.fake.Dump(), text) }

func bubble(t *testing.T, test func(*world)) {
	for seed := range *seeds {
		t.Run(fmt.Sprintf("faults %d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, seed)
				defer func() {
					if w.stop != nil {
						w.stop()
					}
				}()
				test(w)
			})
		})
	}
}

func calmBubble(t *testing.T, test func(*world)) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0)
		w.calm()
		defer func() {
			if w.stop != nil {
				w.stop()
			}
		}()
		test(w)
	})
}
