package agent_test

import (
	"errors"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// Until the agent's own rules are complete, the old rules in the other iptables variant may be the only working ones.
func TestOldRulesAreRemovedAfterNewOnesAreComplete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0)
		w.calm()
		w.fake.SetOldRules(kernel.OldRules{Variant: "legacy", Family: inet.IPv4}, kernel.OldRules{Variant: "legacy", Family: inet.IPv6})
		w.fake.FailNext(kernel.KindRules, errors.New("no memory"))
		w.put(compiletest.Service("web", "10.96.0.1", "10.244.1.1"))
		w.start()
		if old, _ := w.fake.FindOldRules(t.Context()); len(old) != 2 {
			t.Errorf("old rules were removed although writing the new ones failed; left: %v", old)
		}
		w.audit()
		if old, _ := w.fake.FindOldRules(t.Context()); len(old) > 0 {
			t.Errorf("the old rules were not removed: %v", old)
		}
		w.stop()
	})
}

// The old rules in nftables may contain the virtual servers of an agent that used no IPVS. They stay until the new data plane is complete.
func TestOldVirtualServersStayUntilNewOnesAreComplete(t *testing.T) {
	removed := func(w *world) bool {
		old, _ := w.fake.FindOldRules(w.Context())
		return len(old) == 0
	}
	start := func(w *world, services ...*model.Service) {
		w.fake.SetOldRules(kernel.OldRules{Variant: kernel.RulesNFTables})
		w.put(services...)
		w.start()
	}
	t.Run("virtual servers fail", func(t *testing.T) {
		calmBubble(t, func(w *world) {
			w.fake.Refuse(func(op kernel.Op) error {
				if op.KindOf() == kernel.KindServer {
					return syscall.ENOMEM
				}
				return nil
			})
			start(w, web("10.244.0.1"))
			if w.audit(); removed(w) {
				t.Error("the old ones are removed, and there is no new one")
			}
			w.fake.Refuse(nil)
			if w.audit(); !removed(w) || !w.has("-t 10.96.0.1:80") {
				t.Errorf("the old ones stay:\n%s", w.fake.Dump())
			}
		})
	})
	t.Run("a sync yields to a change", func(t *testing.T) {
		calmBubble(t, func(w *world) {
			w.unwatched = true
			change := sync.OnceFunc(func() { w.source.put(services{webID: web("10.244.0.2")}) })
			w.fake.OnOp(func(op kernel.Op, _ error) {
				switch op.KindOf() {
				case kernel.KindRules: // too slow for the first sync, so the next full sync may yield
					time.Sleep(3 * time.Second)
				case kernel.KindServer:
					change()
					time.Sleep(time.Millisecond)
				}
			})
			start(w, web("10.244.0.1"), manyAddresses("10.244.0.1"))
			yielded := false
			for range 2 * auditInterval / time.Second {
				w.sleep(time.Second)
				for _, r := range w.takeReports() {
					yielded = yielded || r.Full && r.Partial
				}
				if n := len(w.fake.View().Servers); removed(w) && n < 6000 {
					t.Fatalf("the old ones are removed, and there are only %d new ones", n)
				}
			}
			if !yielded || !removed(w) {
				t.Errorf("a full sync yielded: %t; the old ones are removed: %t", yielded, removed(w))
			}
		})
	})
}

func TestOldRulesAreTriedAgain(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.fake.SetOldRules(kernel.OldRules{Variant: "legacy", Family: inet.IPv4})
		w.fake.Refuse(func(op kernel.Op) error {
			if _, old := op.Object.(kernel.OldRules); old {
				return errors.New("another program uses them")
			}
			return nil
		})
		w.start()
		w.audit()
		w.audit()
		w.fake.Refuse(nil)
		if told := w.logs.FilterMessageSnippet("old rules").Len(); told != 1 {
			t.Errorf("logged %d lines, want one: %v", told, w.logs.All())
		}
		w.audit()
		if old, _ := w.fake.FindOldRules(t.Context()); len(old) > 0 {
			t.Errorf("the old rules were not removed: %v", old)
		}
	})
}

func TestCleanupRemovesOldRulesFirst(t *testing.T) {
	w := newWorld(t, 0)
	w.calm()
	old := kernel.OldRules{Variant: "legacy", Family: inet.IPv4}
	w.fake.SetOldRules(old)
	c, err := agent.NewCleanup(t.Context(), compiletest.Config(), w.fake)
	if err != nil {
		t.Fatal(err)
	}
	if want := (kernel.Op{Verb: kernel.Delete, Object: old}); c.Plan.Len() == 0 || c.Plan.Phases[0].Ops[0] != want {
		t.Fatalf("got plan %v, want it to begin with %s", c.Plan.Phases, want)
	}
	if err := c.Run(t.Context(), func(kernel.Op, error) {}); err != nil {
		t.Error(err)
	}
	if left, _ := w.fake.FindOldRules(t.Context()); len(left) > 0 {
		t.Errorf("the old rules were not removed: %v", left)
	}
}
