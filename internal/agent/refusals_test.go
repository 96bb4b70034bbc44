package agent_test

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

const broadcast = "192.0.2.255"

func TestRefusedEndpointIsItsServicesProblem(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.refusesEndpoint(broadcast)
		w.put(exposed("web", "10.96.0.1", 30001, "10.244.0.1"))
		w.start()
		w.put(exposed("evil", "10.96.0.6", 30006, "10.244.0.6", broadcast))
		evil := model.ServiceID{Namespace: "default", Name: "evil"}
		r := w.lastReport()
		if r.Err != nil {
			w.Errorf("the sync failed: %v", r.Err)
		}
		if p := r.Problems[evil]; len(p) != 2 || !strings.Contains(p[0].String(), broadcast) {
			w.Errorf("problems: %v", p)
		}
		if !w.has("-r 10.244.0.6:8080 -m -w 1") {
			w.Errorf("the Service's other endpoint is not served:\n%s", w.fake.Dump())
		}
		for i := range 5 {
			endpoint := fmt.Sprintf("10.244.0.%d", 10+i)
			w.put(exposed("web", "10.96.0.1", 30001, endpoint))
			if strings.Count(w.fake.Dump(), "-r "+endpoint+":8080 -m -w 1") != 2 {
				w.Fatalf("an endpoint of another Service waits:\n%s", w.fake.Dump())
			}
		}
		w.put(exposed("evil", "10.96.0.6", 30006, "10.244.0.6"))
		if p, reported := w.lastReport().Problems[evil]; !reported || len(p) > 0 {
			w.Errorf("problems after the endpoint was removed: %v, reported: %t", p, reported)
		}
		w.audit() // the old endpoints have drained
		w.is()
	})
}

// The Problem of a refused object belongs to the Service that wants the object now.
func TestRefusedObjectOfAnotherService(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.fake.Refuse(func(op kernel.Op) error {
			if s, ok := op.Object.(kernel.Server); ok && op.Verb == kernel.Create && s.Key.Addr.Addr().String() == "203.0.113.9" {
				return syscall.EINVAL
			}
			return nil
		})
		first, second := balanced(web("10.244.0.1"), "203.0.113.9"), balanced(compiletest.Service("later", "10.96.0.2", "10.244.0.2"), "203.0.113.9")
		second.Created = compiletest.Epoch.AddDate(1, 0, 0)
		w.put(first, second)
		w.start()
		refused := func(id model.ServiceID) bool {
			for _, r := range slices.Backward(w.takeReports()) {
				if p, reported := r.Problems[id]; reported {
					return strings.Contains(fmt.Sprint(p), "the kernel refuses it")
				}
			}
			return false
		}
		if !refused(webID) {
			t.Fatal("the first Service has no Problem")
		}
		w.remove(webID.Name)
		reports := w.takeReports()
		last := reports[len(reports)-1].Problems
		if p := fmt.Sprint(last[second.ID]); len(last[webID]) > 0 || !strings.Contains(p, "the kernel refuses it") {
			t.Errorf("the deleted Service has the Problems %v, the one that took the address has %s", last[webID], p)
		}
	})
}

// The agent retries with exponential backoff. A refusal never causes a read of the kernel.
func TestRefusedObjectIsRetriedRarely(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.refusesEndpoint(broadcast)
		svc := web("10.244.0.1", broadcast)
		svc.Balancing.SlowStart = time.Second
		w.put(svc)
		w.start()
		w.fake.TakeCounts()
		w.takeReports()
		w.sleep(10 * time.Minute)
		if c := w.fake.TakeCounts(); c.Reads != 10 || c.Writes() < 20 || c.Writes() > 40 {
			w.Errorf("calls in 10 minutes: %+v", c)
		}
		reports := w.takeReports()
		if len(reports) > 60 {
			w.Errorf("%d syncs in 10 minutes", len(reports))
		}
		for _, r := range reports {
			if r.Err != nil || r.Drift != 0 {
				w.Errorf("got error %v and drift %d", r.Err, r.Drift)
			}
		}
		w.fake.Refuse(nil)
		w.sleep(31 * time.Second)
		if !w.has(broadcast) {
			w.Errorf("not retried:\n%s", w.fake.Dump())
		}
		if p := w.lastReport().Problems; p[webID] == nil && len(p[webID]) > 0 {
			w.Errorf("problems: %v", p)
		}
	})
}
