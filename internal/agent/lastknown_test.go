package agent_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

func (w *world) remember(all services) (results func() []error) {
	var served []error
	w.config.LastKnown = &agent.LastKnown{
		Changes: model.Changes{Services: maps.Clone(all), Nodes: maps.Clone(w.around.Nodes)},
		Served: func(err error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			served = append(served, err)
		},
	}
	return func() []error {
		w.mu.Lock()
		defer w.mu.Unlock()
		return slices.Clone(served)
	}
}

func TestServeLastKnown(t *testing.T) {
	calmBubble(t, func(w *world) {
		old := compiletest.Service("old", "10.96.7.7", "10.244.2.7")
		known := all(web(), old)
		results := w.remember(known)
		w.services = known
		w.startUnsynced()
		w.sleep(9 * time.Second)
		if len(results()) > 0 || w.has("10.96.7.7") {
			t.Fatalf("served the last known state while the source could still respond: %v", results())
		}
		w.sleep(2 * time.Second)
		if len(results()) != 1 || results()[0] != nil {
			t.Fatalf("served: %v", results())
		}
		w.is()
		if reports := w.takeReports(); len(reports) > 0 {
			t.Errorf("serving the last known state counts as a sync: %+v", reports)
		}
		w.sleep(time.Hour)
		if len(results()) != 1 {
			t.Errorf("the last known state was served again: %v", results())
		}
		w.services = all(web())
		w.source.mu.Lock()
		w.source.pending, w.source.synced = maps.Clone(w.services), true
		w.source.mu.Unlock()
		w.source.wake()
		w.sleep(time.Second)
		w.is()
	})
}

func TestLastKnownYieldsToTheKernel(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.services = all(web())
		w.start()
		w.is()
		w.stop()
		before := w.fake.Dump()
		results := w.remember(all(compiletest.Service("old", "10.96.7.7", "10.244.2.7")))
		w.startUnsynced()
		w.sleep(time.Hour)
		if len(results()) != 1 || !errors.Is(results()[0], agent.ErrKernelNewer) || w.fake.Dump() != before {
			t.Errorf("got results %v and kernel state\n%s", results(), w.fake.Dump())
		}
	})
}

func TestLastKnownFollowsAddresses(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.services = all(onNodes(web(), 30080))
		around := w.around
		w.around = compiletest.At()
		w.fake.SetNodeAddresses()
		results := w.remember(w.services)
		w.startUnsynced()
		w.sleep(11 * time.Second)
		if !w.has(web().ClusterIPs[0].String()) {
			t.Fatalf("the last known state is not served: %v\n%s", results(), w.fake.Dump())
		}
		w.around = around
		w.fake.SetNodeAddresses(around.Addresses...)
		w.moved <- struct{}{}
		w.sleep(time.Second)
		w.is()
	})
}

type addsOnly struct {
	agent.Kernel
	wrong []kernel.Op
}

func (k *addsOnly) Apply(ctx context.Context, ops []kernel.Op) []error {
	for _, op := range ops {
		if op.Verb == kernel.Delete || op.Verb == kernel.Update {
			k.wrong = append(k.wrong, op)
		}
	}
	return k.Kernel.Apply(ctx, ops)
}

func TestLastKnownOnlyAdds(t *testing.T) {
	bubble(t, func(w *world) {
		w.services = compiletest.Many(20, 2)
		k := &addsOnly{Kernel: w.fake}
		w.kernel = k
		results := w.remember(w.services)
		w.startUnsynced()
		for range 100 {
			if w.sleep(10 * time.Second); len(results()) > 0 && results()[len(results())-1] == nil {
				w.is()
				break
			}
		}
		if last := results()[len(results())-1]; last != nil {
			t.Errorf("the last known state was never served: %v", results())
		}
		if len(k.wrong) > 0 {
			t.Errorf("objects were removed or changed: %v", k.wrong)
		}
	})
}
