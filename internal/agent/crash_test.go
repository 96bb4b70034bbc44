package agent_test

import (
	"fmt"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

var crashSteps = []services{
	all(web("10.244.0.1"), compiletest.Service("empty", "10.96.0.2"), compiletest.Service("six", "fd00::1", "fd01::1"), remotely(), clusterDNS()),
	all(web("10.244.0.2", "10.244.0.3"), compiletest.Service("empty", "10.96.0.2", "10.244.0.3"), compiletest.Service("six", "fd00::1", "fd01::1"), openly(), clusterDNS()),
	all(compiletest.Service("empty", "10.96.0.2", "10.244.0.4"), compiletest.Service("web2", "10.96.0.4", "10.244.0.4"), remotely(), clusterDNS()),
	all(web("10.244.0.5"), compiletest.Service("empty", "10.96.0.2"), compiletest.Service("six", "fd00::1", "fd01::2")),
}

func remotely() *model.Service {
	return ranges(balanced(onNodes(local(remote(compiletest.Service("public", "10.96.0.5", "10.244.1.1"))), 30080), "203.0.113.1"), "198.51.100.0/24")
}

func openly() *model.Service {
	return balanced(onNodes(local(compiletest.Service("public", "10.96.0.5", "10.244.0.1")), 30080), "203.0.113.1")
}

// I9: if the agent is killed at any operation, the next start repairs everything in one sync. It never deletes and
// recreates a wanted virtual server, and it changes no foreign object.
func TestCrash(t *testing.T) {
	theirs := foreign(tcp("10.96.0.9:80"))
	for name, before := range map[string]func(*kerneltest.Fake) error{
		"on a fresh node": theirs,
		"after kube-proxy": func(f *kerneltest.Fake) error {
			if err := kubeProxy(f); err != nil {
				return err
			}
			return theirs(f)
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := 1
			for ; crashAt(t, n, before); n++ {
			}
			t.Attr("figure", fmt.Sprintf("killed at each of %d operations", n-1))
			if n < 150 {
				t.Errorf("the test covered only %d operations", n-1)
			}
		})
	}
}

func crashAt(t *testing.T, n int, before func(*kerneltest.Fake) error) (crashed bool) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0)
		w.calm()
		w.damage(before)
		w.fake.CrashAfter(n)
		w.services = maps.Clone(crashSteps[0])
		w.start()
		for _, step := range crashSteps[1:] {
			if w.lastReport().Err != nil {
				break
			}
			w.sleep(drainInterval + time.Second)
			w.change(compiletest.Between(w.services, step))
		}
		w.sleep(2 * drainInterval)
		w.stop()
		if crashed = w.fake.Restart(); !crashed {
			w.is(theRest(before))
			return
		}
		w.noServerIsLost()
		w.takeReports()
		w.start()
		defer func() { w.stop() }()
		if reports := w.takeReports(); len(reports) != 1 || reports[0].Err != nil {
			w.Fatalf("after a crash at operation %d, there were %d syncs, and the first returned %v", n, len(reports), reports[0].Err)
		}
		w.is(theRest(before))
		if t.Failed() {
			t.Fatalf("the agent crashed at operation %d", n)
		}
	})
	return crashed
}

func theRest(before func(*kerneltest.Fake) error) func(*kerneltest.Fake) error {
	return func(f *kerneltest.Fake) error {
		probe := kerneltest.New()
		if err := before(probe); err != nil {
			return err
		}
		theirs := foreign(tcp("10.96.0.9:80"))
		if !probe.State().Device {
			return theirs(f)
		}
		if err := leftover(f); err != nil {
			return err
		}
		return theirs(f)
	}
}

func (w *world) noServerIsLost() {
	stood := w.fake.State().Servers
	wanted := ideal(w.T, w.services, w.around)
	w.fake.OnOp(func(op kernel.Op, err error) {
		if s, ok := op.Object.(kernel.Server); ok && op.Verb != kernel.Update {
			_, was := stood[s.Key]
			if was && contains(wanted, s.Key) {
				w.Errorf("the agent executed %s, although the virtual server exists and is wanted", op)
			}
		}
		w.checkStep(op, err)
	})
}

func contains(dump string, key kernel.ServerKey) bool {
	f := kerneltest.MustParseDump(dump)
	_, ok := f.State().Servers[key]
	return ok
}

// I9, I13: a new agent writes nothing if the kernel is in the wanted state.
func TestRestartWritesNothing(t *testing.T) {
	bubble(t, func(w *world) {
		w.put(clusterDNS(), web("10.244.0.1", "10.244.0.2"), compiletest.Service("empty", "10.96.0.2"), sticky(compiletest.Service("six", "fd00::1", "fd01::1")))
		w.start()
		w.converged()
		w.restart()
		counts := w.fake.TakeCounts()
		if counts.Reads != 1 || counts.Writes() != 0 || counts.Lookups != 0 {
			w.Errorf("a restart: %+v: %v", counts, done(w.takeReports()...))
		}
		if n := w.logs.Len(); n != len(warnings(w, "initial sync complete")) {
			w.Errorf("a restart logs %v", w.logs.All())
		}
	})
}

// Draining continues after a restart, because the kernel's state shows which destinations are draining.
func TestRestartWhileDraining(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.put(web("10.244.0.1", "10.244.0.2"))
		w.start()
		w.connections("10.244.0.2:8080", 1)
		w.put(web("10.244.0.1"))
		w.restart()
		if n := w.fake.TakeCounts().Writes(); n > 0 {
			w.Errorf("%d writes: %v", n, done(w.takeReports()...))
		}
		w.sleep(2 * drainInterval)
		if !w.has("-r 10.244.0.2:8080 -m -w 0") {
			w.Error(fmt.Sprint("the destination is no longer draining:\n", w.fake.Dump()))
		}
		w.connections("10.244.0.2:8080", 0)
		w.sleep(2 * drainInterval)
		w.is()
	})
}
