package agent_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
)

func (w *world) slowRules(takes time.Duration) (begins <-chan struct{}) {
	began := make(chan struct{}, 100)
	w.fake.OnOp(func(op kernel.Op, err error) {
		w.checkStep(op, err)
		if op.KindOf() == kernel.KindRules {
			began <- struct{}{}
			time.Sleep(takes)
		}
	})
	return began
}

// nothingFailed also checks that nothing but the damage counts as drift.
func (w *world) nothingFailed(damaged ...string) {
	w.Helper()
	for _, r := range w.takeReports() {
		if r.Err != nil {
			w.Errorf("a sync failed: %v", r.Err)
		}
		for _, f := range r.Drifted {
			if !slices.ContainsFunc(damaged, func(text string) bool { return strings.HasPrefix(f.String(), text) }) {
				w.Errorf("what waited for the rules counts as drift: %s", f)
			}
		}
	}
	for _, line := range w.logs.All() {
		if line.Level > zap.WarnLevel {
			w.Errorf("logged: %s %v", line.Message, line.ContextMap())
		}
	}
}

// I16: an endpoint change waits at most a tenth of a second for iptables. Most calls end within that time.
func TestEndpointsDoNotWaitForRules(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.put(web())
		w.start()
		begins := w.slowRules(9 * time.Second)
		w.damage(func(f *kerneltest.Fake) error { return f.FlushChain(inet.IPv4, compile.Chains[0]) })
		begun := func() bool {
			select {
			case <-begins:
				return true
			default:
				return false
			}
		}
		for !begun() {
			w.sleep(time.Millisecond)
		}
		served := func(when, endpoint string) {
			t.Helper()
			if !w.has("-r " + endpoint + ":8080 -m -w 1") {
				t.Errorf("%s: the Service is not served:\n%s", when, w.fake.Dump())
			}
		}
		w.put(web("10.244.0.7"))
		w.sleep(100 * time.Millisecond)
		served("within the first tenth of a second", "10.244.0.7")
		for i := range 8 {
			w.sleep(time.Second)
			endpoint := fmt.Sprint("10.244.1.", i+1)
			w.put(web(endpoint))
			served(fmt.Sprintf("after %d s", i+1), endpoint)
		}
		if begun() {
			t.Error("another call began while the first was running")
		}
		w.nothingFailed("IPv4 table filter: chain " + compile.Chains[0].Chain)
		w.sleep(10 * time.Second)
		w.converged()
	})
}

func TestFirstRulesTakeLong(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.slowRules(3 * time.Second)
		w.put(compiletest.Service("web", "10.96.0.1", "10.244.1.1"))
		w.start()
		w.sleep(2 * time.Second)
		reports := w.takeReports()
		if len(reports) == 0 {
			t.Fatal("no sync has ended")
		}
		for _, r := range reports {
			if r.Complete() || r.Err != nil {
				t.Errorf("complete is %t, the error is %v, and the sync waits for %v", r.Complete(), r.Err, r.Waiting)
			}
		}
		if w.logs.FilterMessage("initial sync complete").Len() > 0 {
			t.Error("the sync was logged as complete")
		}
		w.sleep(20 * time.Second)
		w.nothingFailed()
		w.converged()
		if w.logs.FilterMessage("initial sync complete").Len() != 1 {
			t.Errorf("the sync was never logged as complete: %v", w.logs.All())
		}
	})
}

func TestLateFailures(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.put(web())
		w.start()
		w.slowRules(40 * time.Second)
		w.fake.Stick(inet.Families...)
		w.damage(func(f *kerneltest.Fake) error { return f.FlushChain(inet.IPv4, compile.Chains[0]) })
		w.restart()
		w.fake.TakeCounts()
		w.sleep(10 * auditInterval)
		if c := w.fake.TakeCounts(); c.Reads > 20 || c.Ops[kernel.KindRules] < 10 {
			t.Errorf("ten audits caused %d reads and %d writes of rules", c.Reads, c.Ops[kernel.KindRules])
		}
		failed, drift := 0, 0
		for _, r := range w.takeReports() {
			drift += r.Drift
			if r.Err != nil && strings.Contains(r.Err.Error(), "iptables is stuck") {
				failed++
			}
			if r.Complete() {
				t.Error("a sync is reported as complete")
			}
		}
		if failed < 10 || drift > 2 || w.logs.FilterMessage("operation failed").Len() == 0 {
			t.Errorf("%d failures reported, and %d of the agent's own writes counted as drift; logged: %v", failed, drift, w.logs.All())
		}
		w.fake.Stick()
		w.sleep(2 * auditInterval)
		w.converged()
	})
}

func TestStopDuringRules(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.slowRules(9 * time.Second)
		w.put(web())
		w.start()
		w.sleep(2 * time.Second)
		w.stop()
		w.stop = nil
		before := w.fake.Dump()
		w.sleep(time.Minute)
		if after := w.fake.Dump(); after != before {
			t.Errorf("before:\n%s\nafter:\n%s", before, after)
		}
		synctest.Wait()
	})
}
