package agent_test

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
)

func checking(w *world) {
	w.config.CheckInterval, w.config.AuditInterval = time.Second, 24*time.Hour
}

var notified = []string{"device deleted", "address deleted", "address became a route", "route beside an address"}

// A quick check finds each kind of damage within a second, even if the damage recurs. One audit repairs it.
func TestQuickChecksFind(t *testing.T) {
	for name, drift := range drifts {
		if slices.Contains(notified, name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			calmBubble(t, func(w *world) {
				checking(w)
				w.put(web("10.244.0.1", "10.244.0.2"), compiletest.Service("other", "10.96.0.2", "10.244.0.1"), compiletest.Service("empty", "10.96.0.3"))
				w.start()
				w.sleep(2500 * time.Millisecond)
				if r := w.takeReports(); len(r) != 1 || w.fake.TakeCounts().Summaries != 3 {
					w.Fatalf("%d syncs", len(r))
				}
				for range 2 {
					w.damage(drift)
					w.sleep(2 * time.Second)
					if r := w.takeReports(); len(r) == 0 || r[0].Drift == 0 || r[0].Err != nil {
						w.Fatalf("reports: %+v", r)
					}
					w.sleep(drainInterval) // a foreign destination may have received a connection since the audit's read
					w.is()
					w.takeReports()
				}
				w.fake.TakeCounts()
				w.sleep(time.Minute)
				if c := w.fake.TakeCounts(); c.Writes() > 0 || c.Reads > 0 || c.Summaries != 60 {
					w.Errorf("after the repair, want only 60 summaries, got %+v", c)
				}
			})
		})
	}
}

// A difference that an audit cannot explain triggers no further audit. Firewall-mark virtual servers and other programs'
// rules cause such differences.
func TestQuickChecksAcceptForeignObjects(t *testing.T) {
	calmBubble(t, func(w *world) {
		checking(w)
		w.put(web("10.244.0.1"))
		w.start()
		w.sleep(1500 * time.Millisecond)
		w.fake.TakeCounts()
		w.damage(func(f *kerneltest.Fake) error { return f.AddMarkedServers(3) })
		w.sleep(time.Minute)
		if c := w.fake.TakeCounts(); c.Reads != 1 || c.Writes() > 0 {
			w.Errorf("three firewall-mark virtual servers caused %+v", c)
		}
		w.damage(func(f *kerneltest.Fake) error { return f.ClearServers() })
		w.sleep(2 * time.Second)
		w.is()
	})
}

func TestQuickChecksWithoutFindingsBackOff(t *testing.T) {
	calmBubble(t, func(w *world) {
		checking(w)
		w.config.AuditInterval = 5 * time.Minute
		w.put(web("10.244.0.1"))
		w.start()
		w.sleep(1500 * time.Millisecond)
		w.fake.TakeCounts()
		for i := range 3600 {
			w.fake.TouchRules(inet.IPv4, uint64(i))
			w.sleep(time.Second)
		}
		if c := w.fake.TakeCounts(); c.Reads > 25 || c.Writes() > 0 {
			w.Errorf("within an hour, want no writes and at most 25 reads, got %+v", c)
		}
		w.fake.TouchRules(inet.IPv4, 0)
		w.sleep(10 * time.Minute)
		w.fake.TakeCounts()
		w.damage(func(f *kerneltest.Fake) error { return f.FlushChain(inet.IPv4, services4) })
		w.sleep(2 * time.Second)
		w.is()
	})
}

func TestQuickChecksDuringChanges(t *testing.T) {
	calmBubble(t, func(w *world) {
		checking(w)
		w.start()
		for i := range 200 {
			w.put(web("10.244.0.1", "10.244.0."+strings.Repeat("2", i%2+1)))
			w.sleep(time.Duration(i) * 7 * time.Millisecond)
			w.remove("web")
			w.sleep(time.Duration(i) * 3 * time.Millisecond)
		}
		if c := w.fake.TakeCounts(); c.Reads != 1 || c.Summaries < 100 {
			w.Errorf("%+v", c)
		}
	})
}

func addressOf(i int) string { return fmt.Sprintf("10.96.1.%d", i+1) }

func TestQuickChecksTakeTurns(t *testing.T) {
	calmBubble(t, func(w *world) {
		checking(w)
		const n = 100
		for i := range n {
			svc := compiletest.Service(fmt.Sprintf("svc-%d", i), addressOf(i), "10.244.0.1")
			w.services[svc.ID] = svc
		}
		w.start()
		w.sleep(time.Second)
		w.damage(func(f *kerneltest.Fake) error {
			key := tcp(addressOf(n-1) + ":80")
			d := kernel.ServerDestination{Server: key, Destination: to("10.244.0.1:8080", 1)}
			if err := f.DelDestination(d); err != nil {
				return err
			}
			d.Weight = 7
			return f.AddDestination(d)
		})
		w.sleep((2*n/4 + 4) * time.Second)
		w.is()
	})
}

func TestQuickChecksFail(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.config.CheckInterval = time.Second
		w.put(web("10.244.0.1"))
		w.start()
		for range 70 {
			w.fake.FailNextSummarize(syscall.EPERM)
		}
		w.audit()
		if n := len(warnings(w, "quick checks: failing (read summary: operation not permitted)")); n != 1 {
			w.Errorf("%d warnings: %v", n, w.logs.All())
		}
		w.audit()
		if p := w.lastReport().NodeProblems; len(p) > 0 {
			w.Errorf("problems %v", p)
		}
	})
}

func TestAuditsAreRareWhileQuickChecksWatch(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.config.CheckInterval, w.config.AuditInterval = time.Second, 10*time.Second
		w.put(web("10.244.0.1"))
		w.start()
		w.fake.SlowAudits(50*time.Millisecond, 1)
		w.sleep(30 * time.Second) // two audits; the first took no time
		w.fake.TakeCounts()
		w.sleep(1000 * time.Second)
		if c := w.fake.TakeCounts(); c.Reads < 9 || c.Reads > 11 {
			w.Errorf("%d audits of 50 ms in 1000 s, want one in 100 s", c.Reads)
		}
	})
}

func TestChecksDuringALongAudit(t *testing.T) {
	for took, healthy := range map[time.Duration]bool{2 * time.Minute: true, time.Hour: false} {
		calmBubble(t, func(w *world) {
			w.config.CheckInterval = time.Second
			var checks atomic.Int64
			w.config.Checked = func(time.Time) { checks.Add(1) }
			w.put(web("10.244.0.1"))
			w.start()
			w.fake.SlowAudits(took, 1)
			w.sleep(auditInterval + min(took, 10*time.Minute) - 10*time.Second)
			before := checks.Load()
			w.sleep(9 * time.Second)
			if more := checks.Load() > before; more != healthy {
				w.Errorf("during an audit of %s, quick checks showed that the loop works: %t", took, more)
			}
		})
	}
}

func acceptEverything(f *kerneltest.Fake) error {
	return f.InsertRule(inet.IPv4, kernel.ChainID{Table: "nat", Chain: "PREROUTING"}, "-j", "ACCEPT")
}

func TestAcceptBeforeOurJump(t *testing.T) {
	calmBubble(t, func(w *world) {
		checking(w)
		w.put(web("10.244.0.1"))
		w.start()
		w.sleep(1500 * time.Millisecond)
		w.takeReports()
		w.damage(acceptEverything)
		w.sleep(2 * time.Second)
		w.is(acceptEverything)
		r := w.takeReports()
		if found := r[0].Drifted; len(found) != 1 || found[0].String() != "IPv4 table nat: PREROUTING accepts packets before the agent's jump: -j ACCEPT" {
			t.Errorf("found %v", found)
		}
	})
}

func TestNoRaceToBeFirst(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.config.CheckInterval = time.Second
		w.put(web("10.244.0.1"))
		w.start()
		w.fake.TakeCounts()
		const minutes = 30
		for range minutes * 60 {
			w.damage(acceptEverything)
			w.sleep(time.Second)
		}
		if n := w.fake.TakeCounts().Ops[kernel.KindRules]; n > minutes+10 || n < minutes-5 {
			t.Errorf("the rules were written %d times", n)
		}
		w.audit()
		reports := w.takeReports()
		if p := reports[len(reports)-1].NodeProblems; len(p) != 1 || p[0].Field != "IPv4 chain PREROUTING of table nat" {
			t.Errorf("problems %v", p)
		}
	})
}
