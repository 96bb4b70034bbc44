package scale

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// TestFaultsOnTheKernel changes Services while kernel calls fail, some of them after taking effect, and other
// programs destroy objects. Soon after the faults end, the kernel matches the Services, and a new agent has nothing to
// change (I6, I8).
func TestFaultsOnTheKernel(t *testing.T) {
	space := labtest.NetNS(t)
	const node = "ip link add eth9 type dummy; ip link set eth9 up; ip addr add 198.51.100.1/24 dev eth9; ip addr add 2001:db8:5::1/64 dev eth9 nodad"
	if out, err := exec.Command("sh", "-ec", node).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	cfg, k := open(t)
	f := &faultyKernel{Kernel: k, space: space, random: rand.New(rand.NewPCG(labtest.Seed(t), 0))}
	s, services := newSource(map[model.ServiceID]*model.Service{}), map[model.ServiceID]*model.Service{}
	ctx, stop := context.WithTimeout(t.Context(), time.Hour)
	defer stop()
	var complete atomic.Int64
	var last atomic.Pointer[agent.Report]
	observe := func(r agent.Report) {
		if last.Store(&r); r.Complete() {
			complete.Add(1)
		}
	}
	var changing sync.WaitGroup
	changing.Go(func() {
		defer stop()
		for range 300 {
			name := f.pick(compiletest.Small.Names)
			svc := compiletest.Small.Service(name, f.fork())
			services[svc.ID] = svc
			s.change(svc)
			time.Sleep(100 * time.Millisecond)
			f.disturb()
		}
		f.over.Store(true)
		for n := complete.Load() + 2; complete.Load() < n && ctx.Err() == nil; {
			time.Sleep(100 * time.Millisecond)
		}
	})
	agent.New(agent.Config{
		Compile: cfg, AuditInterval: time.Second, DrainInterval: time.Second, DrainTimeout: time.Second, Observe: observe,
	}, s, f, zap.NewNop()).Run(ctx) // on this goroutine, which is in the network namespace
	changing.Wait()
	t.Attr("figure", fmt.Sprintf("%d calls failed, %d times something was destroyed", f.failed, f.destroyed))
	if f.failed < 50 || f.destroyed < 20 {
		t.Errorf("too few faults: only %d calls failed, and only %d objects were destroyed", f.failed, f.destroyed)
	}
	plan, err := agent.New(agent.Config{Compile: cfg}, newSource(services), k, zap.NewNop()).Plan(t.Context())
	if err != nil || plan.Len() > 0 {
		t.Errorf("after %d complete syncs: %v (last sync: %v); remaining operations:\n%v", complete.Load(), err, last.Load().Err, slices.Collect(plan.All))
	}
}

// faultyKernel is a kernel whose calls fail until the faults end.
type faultyKernel struct {
	agent.Kernel
	space *labtest.Namespace
	over  atomic.Bool
	// destroyed counts the objects that disturb has destroyed.
	destroyed int

	mu     sync.Mutex
	random *rand.Rand
	failed int
}

// errnos lists errors that a kernel returns under pressure, for a bad message, or for an object that changed.
var errnos = []error{syscall.ENOBUFS, syscall.ENOMEM, syscall.EMSGSIZE, syscall.EBUSY, syscall.EINTR, syscall.ETIMEDOUT, syscall.ENOENT, syscall.EEXIST}

// fault returns the error for one call, or nil.
func (f *faultyKernel) fault(probability float64) (err error, effect bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over.Load() || f.random.Float64() > probability {
		return nil, true
	}
	f.failed++
	return errnos[f.random.IntN(len(errnos))], f.random.IntN(2) == 0
}

func (f *faultyKernel) pick(list []string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return list[f.random.IntN(len(list))]
}

func (f *faultyKernel) fork() *rand.Rand {
	f.mu.Lock()
	defer f.mu.Unlock()
	return rand.New(rand.NewPCG(f.random.Uint64(), 0))
}

// Each command fails if there is nothing to destroy.
var destructions = []string{
	"nft flush ruleset", "nft delete table inet kube-ipvs", "ip link del kube-ipvs0", "ip addr flush dev kube-ipvs0", "ipset flush", "ipvsadm -C",
	"nft flush map inet kube-ipvs slots4", "nft flush map inet kube-ipvs frontends6", "nft flush chain inet kube-ipvs balance4",
	"nft flush set inet kube-ipvs KIPVS-4-VIP",
}

func (f *faultyKernel) disturb() {
	if f.pick([]string{"", "", "now"}) == "" {
		return
	}
	if exec.Command("nsenter", "--net="+f.space.Path(), "sh", "-c", f.pick(destructions)).Run() == nil {
		f.destroyed++
	}
}

func (f *faultyKernel) Apply(ctx context.Context, ops []kernel.Op) []error {
	err, effect := f.fault(0.2)
	if err == nil {
		return f.Kernel.Apply(ctx, ops)
	}
	errs := make([]error, len(ops))
	if effect {
		errs = f.Kernel.Apply(ctx, ops)
	}
	for i, op := range ops {
		errs[i] = fmt.Errorf("%s: %w", op, err)
	}
	return errs
}

func (f *faultyKernel) Read(ctx context.Context) (*kernel.State, error) {
	if err, _ := f.fault(0.2); err != nil {
		return nil, err
	}
	return f.Kernel.Read(ctx)
}

func (f *faultyKernel) Lookup(ctx context.Context, keys []kernel.ServerKey) (map[kernel.ServerKey]kernel.ObservedServer, error) {
	if err, _ := f.fault(0.2); err != nil {
		return nil, err
	}
	return f.Kernel.Lookup(ctx, keys)
}
