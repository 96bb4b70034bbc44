package agent_test

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

func (w *world) past(after int) []*view.PastSync {
	w.Helper()
	v, err := w.agent.View(w.Context(), agent.Query{History: true})
	if err != nil {
		w.Fatal(err)
	}
	return slices.DeleteFunc(v.History.Entries, func(e *view.PastSync) bool { return e.ID <= after })
}

func told(e *view.PastSync) string {
	var causes, operations []string
	for _, c := range e.Causes {
		causes = append(causes, strings.Join(append([]string{string(c.Reason)}, c.Objects.Items...), " "))
	}
	for _, o := range e.Operations {
		operations = append(operations, fmt.Sprintf("%s %s +%d ~%d -%d", o.Plane, o.Object, o.Added, o.Changed, o.Removed))
	}
	return fmt.Sprintf("%s; %s; %s; %s", e.Kind, strings.Join(causes, " "), strings.Join(e.Services.Items, ","), strings.Join(operations, ", "))
}

func TestHistory(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.services = all(web("10.244.0.1"))
		w.start()
		first := w.past(0)
		if len(first) != 1 || !strings.HasPrefix(told(first[0]), "full; start; default/web; sysctl sysctls +0 ~") || first[0].Failed() {
			t.Fatalf("got %s after the start", told(first[0]))
		}
		last := func(want string) *view.PastSync {
			t.Helper()
			entries := w.past(first[0].ID)
			if len(entries) == 0 {
				t.Fatalf("got no entry, want %s", want)
			}
			first = entries[len(entries)-1:]
			if got := told(first[0]); len(entries) != 1 || got != want {
				t.Errorf("got %d entries, the last is\n%s, want\n%s", len(entries), got, want)
			}
			return first[0]
		}
		w.put(web("10.244.0.1", "10.244.0.2"))
		last("incremental; services default/web; default/web; ipset set entries +1 ~0 -0, ipvs destinations +1 ~0 -0")
		w.remove("web")
		last("incremental; services default/web (deleted); default/web; address addresses +0 ~0 -1, ipset set entries +0 ~0 -5, ipvs virtual servers +0 ~0 -1")
		w.put(web("10.244.0.1"))
		last("incremental; services default/web; default/web; address addresses +1 ~0 -0, ipset set entries +4 ~0 -0, " +
			"ipvs virtual servers +1 ~0 -0, ipvs destinations +1 ~0 -0")
		w.damage(func(f *kerneltest.Fake) error { return f.ClearServers() })
		w.audit()
		if e := last("repair; ; default/web; ipvs virtual servers +1 ~0 -0, ipvs destinations +1 ~0 -0"); e.Drift.Count != 2 {
			t.Errorf("%+v", e)
		}
		w.sleep(10 * auditInterval)
		if more := w.past(first[0].ID); len(more) > 0 {
			t.Errorf("syncs without an effect are in the history: %s", told(more[0]))
		}
		w.fake.FailNext(kernel.KindDestination, syscall.EIO)
		w.put(web("10.244.0.1", "10.244.0.3"))
		if e := w.past(first[0].ID)[0]; !e.Failed() || e.Failures.Count != 1 || !strings.Contains(e.Failures.Items[0].Operation, "10.244.0.3") {
			t.Errorf("the failure is missing: %+v", e)
		}
		w.sleep(time.Second)
		if e := w.past(first[0].ID + 1); len(e) != 1 || !strings.Contains(told(e[0]), "; retry") || e[0].Failed() {
			t.Errorf("got %d entries after the failure: %v", len(e), e)
		}
	})
}

func TestHistoryNamesChangedSettings(t *testing.T) {
	calmBubble(t, func(w *world) {
		reload := make(chan agent.Reload)
		w.config.Reload = reload
		w.services = all(web("10.244.0.1"))
		w.start()
		next := w.config.Compile.Settings
		next.Scheduler = "wlc"
		reload <- agent.Reload{
			Settings: agent.Settings{Compile: next, AuditInterval: auditInterval, DrainTimeout: drainTimeout}, Changed: []string{"ipvs.scheduler"},
		}
		synctest.Wait()
		const want = "incremental; settings ipvs.scheduler; default/web; ipvs virtual servers +0 ~1 -0"
		if entries := w.past(1); len(entries) != 1 || told(entries[0]) != want {
			t.Errorf("got %d entries, want %s", len(entries), want)
			for _, e := range entries {
				t.Log(told(e))
			}
		}
	})
}
