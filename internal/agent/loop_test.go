package agent_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// I4: while the initial list is incomplete, an object missing from it may still exist.
func TestNothingBeforeSynced(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.services = all(web())
		w.start()
		w.converged()
		w.stop()

		w.services = services{}
		w.startUnsynced()
		w.put(compiletest.Service("other", "10.96.0.2", "10.244.0.1"))
		w.fake.TakeCounts()
		w.sleep(5 * auditInterval)
		if c := w.fake.TakeCounts(); c.Reads+c.Lookups+c.Writes() > 0 {
			w.Errorf("the agent wrote before the initial lists were complete: %+v", c)
		}
		w.source.sync()
		w.sleep(drainInterval)
		w.is()
	})
}

func (s *source) sync() {
	s.mu.Lock()
	s.synced = true
	s.mu.Unlock()
	s.wake()
}

// I4: a kernel that cannot be read must not be treated as empty.
func TestUnreadableKernel(t *testing.T) {
	calmBubble(t, func(w *world) {
		failReads := func(n int) {
			for range n {
				w.fake.FailNextRead(syscall.EPERM)
			}
		}
		failReads(5)
		w.put(web())
		w.start()
		if c := w.fake.TakeCounts(); c.Reads != 1 || c.Writes() > 0 {
			w.Errorf("counts %+v", c)
		}
		if r := w.lastReport(); r.Err == nil || !strings.Contains(r.Err.Error(), "read the kernel's state") {
			w.Errorf("report: %v", r.Err)
		}
		w.put(web("10.244.0.2"))
		w.sleep(time.Second)
		if c := w.fake.TakeCounts(); c.Reads < 2 || c.Writes() > 0 {
			w.Errorf("counts %+v", c)
		}
		w.sleep(10 * time.Second)
		w.is()

		w.fake.TakeCounts()
		failReads(3)
		w.audit()
		if c := w.fake.TakeCounts(); c.Writes() > 0 {
			w.Errorf("a failed audit wrote %+v", c)
		}
		failReads(1) // this time, the lookup fails
		w.put(web(), compiletest.Service("new", "10.96.0.2", "10.244.0.1"))
		if c := w.fake.TakeCounts(); c.Writes() > 0 || c.Lookups != 1 {
			w.Errorf("the agent wrote before it read the kernel: %+v", c)
		}
		w.sleep(10 * time.Second)
		w.is()
	})
}

// I3: a failed operation is retried, and never causes a deletion. kube-proxy forgets a virtual server after a failed update, and then deletes it as
// unused.
func TestFailedUpdateDeletesNothing(t *testing.T) {
	for kind, change := range map[kernel.Kind]*model.Service{
		kernel.KindServer:      sticky(web()),
		kernel.KindDestination: web("10.244.0.1", "10.244.1.9"),
		kernel.KindMember:      web("10.244.0.1", "10.244.0.9"),
	} {
		calmBubble(t, func(w *world) {
			w.put(web(), compiletest.Service("other", "10.96.0.2", "10.244.0.1"))
			w.start()
			w.fake.OnOp(func(op kernel.Op, err error) {
				if op.Verb == kernel.Delete {
					w.Errorf("%s", op)
				}
				w.checkStep(op, err)
			})
			for range 20 {
				w.fake.FailNext(kind, syscall.ENOMEM)
			}
			w.put(change)
			if r := w.lastReport(); r.Err == nil || r.RetryAfter == 0 {
				w.Errorf("report: %+v", r)
			}
			w.sleep(20 * auditInterval)
			w.is()
		})
	}
}

// I8: a Service that cannot be served does not affect others.
func TestFailingServiceBlocksNoOther(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.cannotMake(webKey)
		w.put(web(), compiletest.Service("other", "10.96.0.2", "10.244.0.1"))
		w.start()
		w.sleep(time.Second)
		if w.has("10.96.0.1/32") || !w.has("10.96.0.2/32") {
			w.Errorf("kernel:\n%s", w.fake.Dump())
		}
		w.put(compiletest.Service("third", "10.96.0.3", "10.244.0.1"))
		if !w.has("10.96.0.3/32") {
			w.Errorf("kernel:\n%s", w.fake.Dump())
		}
		w.takeReports()
		w.sleep(time.Hour)
		if n := len(w.takeReports()); n < 50 || n > 70 {
			w.Errorf("got %d syncs in an hour", n)
		}
		w.fake.Refuse(nil)
		w.sleep(auditInterval)
		w.is()
		w.fake.TakeCounts()
		w.sleep(30 * time.Second)
		if c := w.fake.TakeCounts(); c.Reads > 1 {
			w.Errorf("the agent still retries: %+v", c)
		}
	})
}

func (w *world) cannotMake(key kernel.ServerKey) {
	w.fake.Refuse(func(op kernel.Op) error {
		if s, ok := op.Object.(kernel.Server); ok && s.Key == key {
			return kernel.ErrUnavailable
		}
		return nil
	})
}

func TestBackoff(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.cannotMake(webKey)
		w.put(web())
		w.start()
		began := time.Now()
		var at []time.Duration
		for len(at) < 6 {
			w.put(compiletest.Service("busy", "10.96.0.2", "10.244.0.1"))
			for _, r := range w.takeReports() {
				if r.Full && r.Started != began {
					at = append(at, r.Started.Sub(began))
				}
			}
			w.sleep(10 * time.Millisecond)
		}
		for i, wait := range []time.Duration{100, 300, 700, 1500, 3100, 6300} {
			if at[i] != wait*time.Millisecond {
				w.Errorf("the attempts were at %v", at)
				break
			}
		}
	})
}

// All Services depend on the base. While it cannot be written, no virtual server is created, but existing ones are
// updated.
func TestBaseFails(t *testing.T) {
	for _, lose := range []bool{false, true} {
		for _, kind := range []kernel.Kind{kernel.KindSet, kernel.KindRules, kernel.KindDevice} {
			calmBubble(t, func(w *world) {
				fail := w.fake.FailNext
				if lose {
					fail = w.fake.LoseNext
				}
				for range 3 {
					fail(kind, syscall.EBUSY)
				}
				w.put(web())
				w.start()
				for range 5 { // changes arrive while a retry is pending
					w.put(compiletest.Service("other", "10.96.0.2", "10.244.0.1"))
					w.put(web("10.244.0.1", "10.244.0.2"))
					w.remove("other")
				}
				w.sleep(5 * auditInterval)
				w.is()
			})
		}
	}
}

// When a set is replaced, the agent cannot know which members survive.
func TestReplacedSetIsReadAgain(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.put(web())
		w.start()
		w.damage(drifts["set too small"])
		w.fake.TakeCounts()
		w.sleep(auditInterval)
		w.is()
		if c := w.fake.TakeCounts(); c.Reads != 2 {
			w.Errorf("counts %+v", c)
		}
		w.remove("web")
		w.is()
	})
}

func TestPodRangesOfTheNode(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.config.Compile.LocalByNodeCIDR = true
		w.fake.OnOp(nil) // the checker uses the old rules
		w.put(web())
		w.start()
		w.fake.TakeCounts()
		w.source.putNodes(map[string]*model.Node{compiletest.Node: {PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.2.0/24")}}})
		w.sleep(0)
		if c := w.fake.TakeCounts(); c.Ops[kernel.KindRules] != 2 || c.Writes() != 2 || c.Reads > 0 || !w.has("-s 10.1.2.0/24 -j ACCEPT") {
			w.Errorf("counts %+v", c)
		}
	})
}

func TestKernelChanged(t *testing.T) {
	calmBubble(t, func(w *world) {
		disturbed := make(chan struct{}, 1)
		w.config.KernelChanged = disturbed
		w.put(web())
		w.start()
		w.sleep(10 * time.Second)
		w.damage(func(f *kerneltest.Fake) error { return f.ClearServers() })
		w.fake.TakeCounts()
		disturbed <- struct{}{}
		w.sleep(0)
		w.is()
		for range 100 {
			disturbed <- struct{}{}
			w.sleep(100 * time.Millisecond)
		}
		if c := w.fake.TakeCounts(); c.Reads < 10 || c.Reads > 12 {
			w.Errorf("counts %+v", c)
		}
	})
}

func TestStop(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.put(web())
		w.start()
		before := w.fake.Dump()
		w.stop()
		if w.fake.Dump() != before {
			w.Error("stopping changed the kernel")
		}
		for _, r := range w.takeReports() {
			if r.Err != nil {
				w.Error(r.Err)
			}
		}
	})
}

func TestReport(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.put(web(), younger(compiletest.Service("late", "10.96.0.1")))
		w.start()
		r := w.lastReport()
		if !r.Full || r.Services != 2 || len(r.Compiled) != 2 || len(r.Problems) != 2 || r.Err != nil {
			w.Errorf("first: %+v", r)
		}
		w.fake.FailNext(kernel.KindDestination, syscall.ENOMEM)
		w.put(web("10.244.0.1", "10.244.1.2"))
		r = w.lastReport()
		if r.Full || !errors.Is(r.Err, syscall.ENOMEM) || r.RetryAfter != 100*time.Millisecond || failed(r) != 1 {
			w.Errorf("got report %+v, want one failed operation", r)
		}
	})
}

func failed(r agent.Report) int {
	n := 0
	for _, result := range r.Results {
		if result.Err != nil && !result.Skipped {
			n++
		}
	}
	return n
}

// After a failed operation, a change at the same address waits for the next full read, which is then scheduled earlier.
// Changes at other addresses do not wait.
func TestChangeAtUnverifiedAddress(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.cannotMake(tcp("10.96.0.1:443"))
		both := web()
		both.Ports = append(both.Ports, model.ServicePort{Name: "https", Protocol: inet.TCP, Port: 443})
		w.put(both, compiletest.Service("other", "10.96.0.2", "10.244.0.1"))
		w.start()
		w.sleep(time.Hour)
		if !w.has("10.96.0.1/32") || !w.has("ipset add KIPVS-4-CLUSTER-IP 10.96.0.1,tcp:80") {
			w.Errorf("a port that can be served is not served:\n%s", w.fake.Dump())
		}
		w.fake.TakeCounts()
		w.put(compiletest.Service("other", "10.96.0.2", "10.244.0.7"))
		if c := w.fake.TakeCounts(); c.Reads > 0 || c.Writes() == 0 {
			w.Errorf("a change at another address caused %+v", c)
		}
		for i := range 20 {
			w.put(compiletest.WithEndpoint(both, compiletest.Ready(compiletest.Pod(i))))
			w.sleep(100 * time.Millisecond)
		}
		w.sleep(time.Second)
		if c := w.fake.TakeCounts(); c.Reads > 4 {
			w.Errorf("changes at the unverified address caused %+v", c)
		}
		if !w.has("-r " + compiletest.Pod(19).String() + ":8080 -m -w 1") {
			w.Errorf("the last change was not written:\n%s", w.fake.Dump())
		}
	})
}

func TestRetryIsNotPostponed(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.start()
		w.takeReports()
		full := 0
		for i := range 30 {
			w.fake.FailNext(kernel.KindServer, syscall.ENOMEM)
			w.put(compiletest.Service(fmt.Sprint("svc-", i), fmt.Sprint("10.96.1.", i+1), "10.244.0.1"))
			w.sleep(20 * time.Millisecond)
		}
		for _, r := range w.takeReports() {
			if r.Full {
				full++
			}
		}
		if full < 3 {
			w.Errorf("got %d attempts in 600ms", full)
		}
		w.sleep(10 * time.Second)
		w.is()
	})
}

// Objects that a failed sync should have removed are still removed after later changes.
func TestSyncWithoutPlan(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.put(web())
		w.start()
		w.fake.FailNextRead(syscall.EBUSY)
		w.put(compiletest.Service("web", "10.96.0.1"), compiletest.Service("new", "10.96.0.2", "10.244.0.1"))
		if r := w.lastReport(); r.Err == nil {
			w.Error("the lookup did not fail")
		}
		w.remove("web")
		w.sleep(10 * time.Second)
		w.is()
	})
}
