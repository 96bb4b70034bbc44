package agent_test

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
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
