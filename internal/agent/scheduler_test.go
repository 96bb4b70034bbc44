package agent_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// withCanary returns the Service web, whose pod web-0 is a canary with its own weight.
func withCanary(endpoints ...string) *model.Service {
	svc := web(endpoints...)
	svc.Balancing.Weights.Pods = []model.NamedWeight{{Name: "default/web-0", Weight: 5}}
	for i := range svc.Slices[0].Endpoints {
		if svc.Slices[0].Endpoints[i].Addr.String() == "10.244.0.9" {
			svc.Slices[0].Endpoints[i].Pod = "default/web-0"
		}
	}
	return svc
}

func (w *world) edits() []string {
	list := []string{}
	for _, line := range done(w.takeReports()...) {
		if strings.HasPrefix(line, "ipvsadm -E") {
			list = append(list, line)
		}
	}
	return list
}

func (w *world) edited(when string, want ...string) {
	w.Helper()
	if diff := cmp.Diff(want, w.edits(), cmpopts.EquateEmpty()); diff != "" {
		w.Errorf("%s: unexpected virtual servers changed in place (-want +have):\n%s", when, diff)
	}
}

func TestTemporaryWeightsEditNoServer(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.put(withCanary("10.244.0.1", "10.244.0.2"))
		w.start()
		for _, endpoints := range [][]string{{"10.244.0.1", "10.244.0.9"}, {"10.244.0.1"}, {"10.244.0.1", "10.244.0.9"}} {
			w.put(withCanary(endpoints...))
		}
		w.put(web("10.244.0.1", "10.244.0.9"))
		w.edited("temporary weights")
		w.converged()
		w.edited("an audit")
	})
}

func TestUpgradeEditsNoServer(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.damage(func(f *kerneltest.Fake) error { return f.AddServer(serverAt(webKey), to("10.244.0.1:8080", 1)) })
		w.put(withCanary("10.244.0.1"), compiletest.Service("other", "10.96.0.2", "10.244.0.1"))
		w.start()
		w.edited("the start")
		w.put(withCanary("10.244.0.1", "10.244.0.9"))
		w.edited("different weights", "ipvsadm -E -t 10.96.0.1:80 -s wrr")
	})
}

func TestModuleIsLoadedBetweenRareAudits(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.config.CheckInterval = time.Second
		w.fake.SlowAudits(2*time.Second, 1) // so the next audit is five minutes away
		w.fake.LacksScheduler("sed")
		svc := web("10.244.0.1")
		svc.Balancing.Scheduler = "sed"
		w.put(svc)
		w.start()
		w.sleep(auditInterval + 3*time.Second)
		w.takeReports()
		w.fake.GetsScheduler("sed")
		w.sleep(auditInterval + time.Second)
		if s := w.fake.State().Servers[webKey]; s.Scheduler != "sed" {
			t.Errorf("the scheduler is %s", s.Scheduler)
		}
		for _, r := range w.takeReports() {
			if r.Full {
				t.Error("an audit found the module, so this test proves nothing")
			}
		}
	})
}
