package agent_test

import (
	"context"
	"maps"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

func (w *world) inherit(before, now services) {
	w.services = before
	w.start()
	w.converged()
	w.stop()
	w.services = now
	w.start()
	w.sleep(time.Second)
}

func except(all services, missing int) services {
	less := maps.Clone(all)
	for _, id := range slices.SortedFunc(maps.Keys(all), model.ServiceID.Compare)[:missing] {
		delete(less, id)
	}
	return less
}

func withoutEndpoints(all services) services {
	less := services{}
	for id, svc := range all {
		alone := *svc
		alone.Slices = nil
		less[id] = &alone
	}
	return less
}

// I15: if the first lists lack most of the virtual servers in the kernel, a new agent changes nothing for half a minute, and then accepts the lists.
func TestFirstListLacksMostServices(t *testing.T) {
	all := compiletest.Many(20, 2)
	for name, listed := range map[string]services{
		"nothing": {}, "two of twenty": except(all, 18), "no EndpointSlices": withoutEndpoints(all),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(w *world) {
				w.inherit(all, listed)
				w.services = all
				w.is()
				if r := w.lastReport(); r.Err == nil || r.Full {
					t.Errorf("the report has the error %v, and is full: %t", r.Err, r.Full)
				}
				w.sleep(agent.HoldInherited - 2*time.Second)
				w.is()
				w.calm()
				w.sleep(3 * time.Second)
				w.services = listed
				w.is()
			})
		})
	}
}

// failsSecondRead fails once, between the bootstrap Services and all others.
type failsSecondRead struct {
	*kerneltest.Fake
	reads int
}

func (k *failsSecondRead) Read(ctx context.Context) (*kernel.State, error) {
	if k.reads++; k.reads == 2 {
		return nil, syscall.EBUSY
	}
	return k.Fake.Read(ctx)
}

func TestFirstListLacksMostServicesWithoutTheDevice(t *testing.T) {
	calmBubble(t, func(w *world) {
		before := compiletest.Many(20, 2)
		maps.Copy(before, all(clusterDNS()))
		w.services = before
		w.start()
		w.stop()
		servers := len(w.fake.State().Servers)
		w.damage(func(f *kerneltest.Fake) error { return f.DelDevice() })
		k := &failsSecondRead{Fake: w.fake}
		w.kernel, w.services = k, maps.Clone(before)
		for id := range compiletest.Many(18, 2) {
			delete(w.services, id)
		}
		w.start()
		w.sleep(5 * time.Second)
		if k.reads < 3 {
			t.Fatalf("%d reads", k.reads)
		}
		if after := w.fake.State().Servers; len(after) < servers {
			t.Errorf("%d of %d virtual servers remain", len(after), servers)
		}
	})
}

func TestFirstListFillsUp(t *testing.T) {
	calmBubble(t, func(w *world) {
		all := compiletest.Many(20, 2)
		w.kernel = &addsOnly{Kernel: w.fake}
		w.inherit(all, services{})
		w.services = all
		w.source.put(all)
		w.sleep(time.Second)
		w.is()
		if wrong := w.kernel.(*addsOnly).wrong; len(wrong) > 0 {
			t.Errorf("objects were removed or changed: %v", wrong)
		}
		if err := w.lastReport().Err; err != nil {
			t.Error(err)
		}
	})
}

func TestFirstListLacksSomeServices(t *testing.T) {
	all := compiletest.Many(40, 2)
	for name, c := range map[string]struct{ before, now services }{
		"less than half": {all, except(all, 18)},
		"all of a few":   {except(all, 32), services{}},
		"no endpoints":   {except(all, 32), withoutEndpoints(except(all, 32))},
	} {
		t.Run(name, func(t *testing.T) {
			calmBubble(t, func(w *world) {
				w.inherit(c.before, c.now)
				w.is()
			})
		})
	}
}

func TestFirstListOfACompleteSource(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.config.CompleteSource = true
		w.inherit(compiletest.Many(20, 2), services{})
		w.is()
	})
}

func TestFirstListLacksOneLargeService(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.unwatched = true
		w.fake.OnOp(nil)
		listed := compiletest.Many(40, 2)
		large := manyAddresses("10.244.0.1")
		before := maps.Clone(listed)
		before[large.ID] = large
		w.inherit(before, listed)
		if err := w.lastReport().Err; err != nil || w.has("203.1.0.1") {
			t.Errorf("the deleted Service is still served, or the sync failed: %v", err)
		}
	})
}
