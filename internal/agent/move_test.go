package agent_test

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// plane is the kernel as one data plane shows it. It counts the calls that an agent makes all the time.
type plane struct {
	agent.Kernel
	calls atomic.Int64
	// While full is true, AdoptRecords fails. An audit waits until auditing is closed; nil means no wait.
	full     atomic.Bool
	auditing chan struct{}
}

func (p *plane) Read(ctx context.Context) (*kernel.State, error) {
	p.calls.Add(1)
	return p.Kernel.Read(ctx)
}

func (p *plane) Apply(ctx context.Context, ops []kernel.Op) []error {
	p.calls.Add(1)
	return p.Kernel.Apply(ctx, ops)
}

func (p *plane) Audit(ctx context.Context, asked kernel.Audit) (*kernel.Differences, error) {
	p.calls.Add(1)
	if p.auditing != nil {
		<-p.auditing
	}
	return p.Kernel.Audit(ctx, asked)
}

func (p *plane) Summarize(ctx context.Context, sample kernel.Sample) (*kernel.Summary, error) {
	p.calls.Add(1)
	return p.Kernel.Summarize(ctx, sample)
}

func (p *plane) AdoptRecords(ctx context.Context) error {
	if p.full.Load() {
		return errors.New("no memory")
	}
	return p.Kernel.AdoptRecords(ctx)
}

func (w *world) startMovable() (old *plane, moves chan agent.Move) {
	old, moves = &plane{Kernel: w.fake}, make(chan agent.Move)
	w.unwatched, w.kernel, w.config.Move, w.config.CheckInterval = true, old, moves, time.Second
	w.config.Compile.Mode = kernel.NFTablesOnly
	w.fake.OnOp(nil)
	w.services = all(web("10.244.0.1"), compiletest.Service("six", "fd00::1", "fd01::1"), remotely(), clusterDNS())
	w.start()
	return old, moves
}

// While the first sync of the new data plane fails, a draining endpoint causes no further attempts.
func TestFailedMoveRetriesRarely(t *testing.T) {
	calmBubble(t, func(w *world) {
		_, moves := w.startMovable()
		second := netip.MustParseAddrPort("10.244.0.2:8080")
		w.put(web("10.244.0.1", second.Addr().String()))
		w.fake.SetConnections(webKey, second, 1, 0)
		w.put(web("10.244.0.1"))
		next := &plane{Kernel: w.fake}
		next.full.Store(true)
		moves <- agent.Move{Kernel: next, Mode: kernel.IPVSWithNFTables, Done: func() {}}
		w.sleep(time.Second)
		w.takeReports()
		w.sleep(2 * time.Minute)
		if n := len(w.takeReports()); n == 0 || n > 120 {
			t.Errorf("%d attempts in two minutes", n)
		}
	})
}

// A running agent moves to another data plane. It never uses the old one again, removes no virtual server or address, and sets IPVS' sysctls
// before the rules. If the virtual servers cannot be copied, the rules stay, and the agent tries again.
func TestMove(t *testing.T) {
	var fresh string
	calmBubble(t, func(w *world) {
		w.startMovable()
		w.stop()
		w.config.Compile.Mode = kernel.IPVSWithNFTables
		w.put(compiletest.Service("later", "10.96.0.77", "10.244.0.77"))
		w.start()
		fresh = w.fake.Dump()
	})
	calmBubble(t, func(w *world) {
		old, moves := w.startMovable()
		var done atomic.Bool
		next := &plane{Kernel: w.fake}
		next.full.Store(true)
		var mu sync.Mutex // the agent writes the rules of both families at the same time
		var ops []kernel.Op
		w.fake.OnOp(func(op kernel.Op, _ error) {
			mu.Lock()
			defer mu.Unlock()
			ops = append(ops, op)
		})
		moves <- agent.Move{Kernel: next, Mode: kernel.IPVSWithNFTables, Done: func() { done.Store(true) }}
		w.sleep(time.Second)
		if len(ops) > 0 || done.Load() {
			t.Errorf("the virtual servers are not copied, but the agent wrote %v", ops)
		}
		if r := w.lastReport(); r.Err == nil || r.RetryAfter == 0 {
			t.Errorf("the agent reports %v, retry after %s", r.Err, r.RetryAfter)
		}
		next.full.Store(false)
		w.sleep(auditInterval)
		if !done.Load() {
			t.Error("the move does not end")
		}
		mustReplaceRules(t, ops)
		used, before := old.calls.Load(), next.calls.Load()
		w.logs.TakeAll()
		w.put(compiletest.Service("later", "10.96.0.77", "10.244.0.77"))
		if w.logs.FilterMessage("ipvsadm -A -t 10.96.0.77:80 -s rr").Len() != 1 {
			t.Errorf("the log still describes operations as in nftables: %v", w.logs.All())
		}
		w.audit()
		if old.calls.Load() != used || next.calls.Load() == before {
			t.Errorf("%d calls to the old data plane and %d to the new one", old.calls.Load()-used, next.calls.Load()-before)
		}
		if d := cmp.Diff(lines(fresh), lines(w.fake.Dump())); d != "" {
			t.Errorf("the kernel differs from that of an agent that has just been started (-want +have):\n%s", d)
		}
	})
}

func mustReplaceRules(t *testing.T, ops []kernel.Op) {
	t.Helper()
	sysctls, rules := false, false
	for _, op := range ops {
		if op.Verb == kernel.Delete {
			t.Errorf("the move includes %s", op)
		}
		rules = rules || op.KindOf() == kernel.KindRules
		sysctls = sysctls || op.KindOf() == kernel.KindSysctl && !rules
	}
	if !sysctls || !rules {
		t.Errorf("the operations are %v", ops)
	}
}

// While work outside the loop uses the old kernel, and before the kernel's state is known, the move waits.
func TestMoveWaits(t *testing.T) {
	calmBubble(t, func(w *world) {
		old, moves := w.startMovable()
		w.stop()
		old.auditing = make(chan struct{})
		w.startUnsynced()
		offer := func() bool {
			select {
			case moves <- agent.Move{Kernel: &plane{Kernel: w.fake}, Mode: kernel.IPVSWithNFTables, Done: func() {}}:
				return true
			default:
				return false
			}
		}
		if offer() {
			t.Error("the agent moves before it has read the kernel")
		}
		w.source.mu.Lock()
		w.source.synced = true
		w.source.mu.Unlock()
		w.source.wake()
		synctest.Wait()
		w.audit()
		if offer() {
			t.Error("the agent moves during an audit")
		}
		close(old.auditing)
		synctest.Wait()
		if !offer() {
			t.Error("the agent does not move")
		}
	})
}
