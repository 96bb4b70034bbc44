package agent_test

import (
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

const first, second = "10.244.0.1", "10.244.0.2"

func slow(endpoints ...string) *model.Service {
	svc := web(endpoints...)
	svc.Balancing.SlowStart = time.Minute
	return svc
}

// startRamp starts an agent with one endpoint, and adds a second endpoint, whose weight rises.
func (w *world) startRamp() {
	w.Helper()
	w.put(slow(first))
	w.start()
	w.put(slow(first, second))
}

// weightOf returns an endpoint's weight in the kernel, or -1 if the endpoint does not exist.
func (w *world) weightOf(endpoint string) int {
	for _, d := range w.fake.State().Servers[webKey].Destinations {
		if d.Addr == netip.AddrPortFrom(netip.MustParseAddr(endpoint), 8080) {
			return int(d.Weight)
		}
	}
	return -1
}

func (w *world) wantWeights(when string, ofFirst, ofSecond int) {
	w.Helper()
	if a, b := w.weightOf(first), w.weightOf(second); a != ofFirst || b != ofSecond {
		w.Errorf("%s: got weights %d and %d, want %d and %d", when, a, b, ofFirst, ofSecond)
	}
}

// In a new virtual server, all endpoints start at full weight. The weight of a later endpoint rises step by step, and
// no syncs follow the last step.
func TestSlowStart(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.put(slow(first))
		w.start()
		w.wantWeights("a new virtual server", 10, -1)
		w.put(slow(first, second))
		for step := 1; step <= 10; step++ {
			w.wantWeights(fmt.Sprintf("step %d", step), 10, step)
			w.sleep(stepTime)
		}
		w.is()
		w.takeReports()
		w.sleep(20 * auditInterval)
		if n := len(w.takeReports()); n > 21 {
			w.Errorf("%d syncs in twenty minutes although no weight is rising", n)
		}
	})
}

const stepTime = 6 * time.Second

// I9: after a restart, a weight continues to rise from its value in the kernel.
func TestSlowStartContinuesAfterRestart(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.startRamp()
		w.sleep(4 * stepTime)
		for range 5 {
			w.restart()
			w.wantWeights("after a restart", 10, 5)
			w.sleep(time.Second)
		}
		w.sleep(stepTime)
		w.wantWeights("one step later", 10, 6)
		w.sleep(4 * stepTime)
		w.is()
	})
}

func TestSlowStartIsNotDrift(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.put(slow(first))
		w.start()
		w.sleep(auditInterval - 5*stepTime)
		w.put(slow(first, second)) // a step and the audit are due at the same time
		w.takeReports()
		w.sleep(5 * stepTime)
		w.wantWeights("the audit", 10, 6)
		w.sleep(2 * auditInterval)
		full := 0
		for _, r := range w.takeReports() {
			if r.Full {
				full++
			}
			if r.Drift > 0 {
				w.Errorf("the audit found %d differences: %v", r.Drift, done(r))
			}
		}
		if full < 3 {
			w.Errorf("%d audits", full)
		}
		w.is()
	})
}

func TestReturningEndpointStartsSlowly(t *testing.T) {
	calmBubble(t, func(w *world) {
		drained := slow(first, second)
		drained.Slices[0].Endpoints[1].Pod = "default/web-1"
		drained.Balancing.Weights.Pods = []model.NamedWeight{{Name: "default/web-1"}}
		w.put(slow(first, second))
		w.start()
		for name, away := range map[string]*model.Service{"by request": drained, "gone": slow(first)} {
			w.put(away)
			w.fake.SetConnections(webKey, netip.MustParseAddrPort(second+":8080"), 1, 0)
			w.wantWeights("drained "+name, 10, 0)
			w.sleep(time.Minute)
			w.wantWeights("drained for a minute "+name, 10, 0)
			w.put(slow(first, second))
			w.wantWeights("back, "+name, 10, 1)
			w.sleep(2 * stepTime)
			w.wantWeights("two steps later, "+name, 10, 3)
			w.sleep(time.Minute)
			w.wantWeights("at last, "+name, 10, 10)
		}
	})
}

func TestSlowStartWithFailingWrites(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.startRamp()
		for range 1000 {
			w.fake.FailNext(kernel.KindDestination, syscall.ENOMEM)
		}
		w.takeReports()
		w.fake.TakeCounts()
		w.sleep(10 * time.Minute)
		if syncs, c := len(w.takeReports()), w.fake.TakeCounts(); syncs > 150 || c.Writes() > 150 {
			w.Errorf("got %d syncs and %d writes in ten minutes", syncs, c.Writes())
		}
		w.wantWeights("nothing could be written", 10, 1)
		w.stop()
		w.calmNext()
		w.start()
		w.sleep(2 * time.Minute)
		w.is()
	})
}

func (w *world) calmNext() {
	nothing := kernel.Op{Verb: kernel.Delete, Object: kernel.ServerDestination{Server: tcp("192.0.2.99:9")}}
	for w.fake.Apply(w.Context(), []kernel.Op{nothing})[0] != nil {
		continue
	}
}

func TestSlowStartsConverge(t *testing.T) {
	bubble(t, func(w *world) {
		w.put(slow(first))
		w.start()
		for range 3 {
			w.put(slow(first, second))
			w.sleep(3 * stepTime)
			w.restart()
			w.sleep(3 * stepTime)
			w.put(slow(first))
			w.sleep(time.Second)
			w.put(slow(first, second, "10.244.1.3"))
			w.sleep(stepTime)
		}
		w.converged()
	})
}

func TestRampsEndWithTheirServer(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.startRamp()
		w.sleep(2 * stepTime)
		w.remove("web")
		w.audit()
		w.put(slow(first))
		w.sleep(time.Second)
		w.put(slow(first, second))
		w.wantWeights("in the new virtual server", 10, 1)
	})
}

// If the kernel lacks a scheduler, the agent uses another one within a second and reports a Problem. The agent does
// not retry forever.
func TestMissingScheduler(t *testing.T) {
	bubble(t, func(w *world) {
		w.fake.LacksScheduler("sh")
		svc := web(first, second)
		svc.Balancing.Scheduler = "sh"
		w.put(svc)
		w.start()
		w.calm()
		w.sleep(2 * time.Second)
		if s := w.fake.State().Servers[webKey]; s.Scheduler != "rr" || len(s.Destinations) != 2 || s.Flags != 0 {
			w.Errorf("have %+v", s)
		}
		if log := fmt.Sprint(w.logs.All()); !strings.Contains(log, "no such scheduler: rr is used until it has the module ip_vs_sh") {
			w.Errorf("log: %s", log)
		}
		w.audit()
		w.takeReports()
		w.audit()
		for _, r := range w.takeReports() {
			if r.Err != nil || len(r.Results) > 0 {
				w.Errorf("a later sync returned %v and wrote %v", r.Err, done(r))
			}
		}
	})
}

func TestMissingSchedulerFailsNoSync(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.fake.LacksScheduler("sh", "lc")
		svc, later := web(first, second), compiletest.Service("later", "10.96.0.2", "10.244.0.1")
		svc.Balancing.Scheduler, later.Balancing.Scheduler = "sh", "lc"
		w.put(svc)
		w.start()
		w.put(later)
		for _, r := range w.takeReports() {
			if r.Err != nil {
				w.Errorf("a sync failed: %v", r.Err)
			}
		}
		servers := w.fake.State().Servers
		if have := servers[webKey].Scheduler + " " + servers[tcp("10.96.0.2:80")].Scheduler; have != "rr rr" {
			w.Errorf("schedulers %s", have)
		}
	})
}

func TestSchedulerModuleLoadedLater(t *testing.T) {
	bubble(t, func(w *world) {
		w.fake.LacksScheduler("sh")
		svc := web(first, second)
		svc.Balancing.Scheduler = "sh"
		w.put(svc)
		w.start()
		w.calm()
		w.sleep(2 * time.Second)
		w.fake.GetsScheduler("sh")
		w.takeReports()
		w.audit()
		w.sleep(time.Second)
		if s := w.fake.State().Servers[webKey]; s.Scheduler != "sh" {
			w.Errorf("have %+v", s)
		}
		reports := w.takeReports()
		if p, compiled := reports[0].Problems[svc.ID]; !compiled || len(p) > 0 {
			w.Errorf("got problems %v, reported: %t", p, compiled)
		}
	})
}

// If the kernel lacks the configured scheduler, the agent uses rr from the first sync on. It reports a Problem but no
// failure. Services that name another scheduler are not affected.
func TestNodeLacksItsScheduler(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.config.Compile.Scheduler = "sed"
		w.fake.LacksScheduler("sed")
		lc := compiletest.Service("lc", "10.96.0.2", "10.244.0.1")
		lc.Balancing.Scheduler = "lc"
		w.put(web(first), lc)
		w.start()
		schedulers := func(want string) {
			w.Helper()
			servers := w.fake.State().Servers
			if have := servers[webKey].Scheduler + " " + servers[tcp("10.96.0.2:80")].Scheduler; have != want {
				w.Errorf("got schedulers %s, want %s", have, want)
			}
		}
		schedulers("rr lc")
		r := w.takeReports()[0]
		if len(r.NodeProblems) != 1 || !strings.Contains(r.NodeProblems[0].String(), `--ipvs-scheduler "sed": this node's kernel has no such scheduler: rr is used`) {
			w.Errorf("the node has problems %v", r.NodeProblems)
		}
		if r.Err != nil || len(r.Problems[lc.ID]) > 0 {
			w.Errorf("got error %v and problems %v", r.Err, r.Problems)
		}
		w.fake.GetsScheduler("sed")
		w.audit()
		w.sleep(time.Second)
		schedulers("sed lc")
		if r := w.lastReport(); len(r.NodeProblems) > 0 {
			w.Errorf("the node has problems %v", r.NodeProblems)
		}
	})
}

// If the weighted variant is also missing, weights have no effect, but the Service is still served.
func TestMissingWeightedSibling(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.fake.LacksScheduler("wrr")
		w.put(web(first))
		w.start()
		svc := web(first, second)
		svc.Slices[0].Endpoints[1].Pod = "default/web-1"
		svc.Balancing.Weights.Pods = []model.NamedWeight{{Name: "default/web-1", Weight: 5}}
		w.put(svc)
		w.sleep(2 * time.Second)
		if s := w.fake.State().Servers[webKey]; s.Scheduler != "rr" || len(s.Destinations) != 2 {
			w.Errorf("have %+v", s)
		}
	})
}

// Limits can be set, changed and removed, even while no agent is running or writes fail.
func TestLimits(t *testing.T) {
	limit := func(upper, lower uint32) *model.Service {
		svc := web(first, second)
		svc.Balancing.MaxConnections, svc.Balancing.ResumeConnections = upper, lower
		return svc
	}
	steps := []*model.Service{limit(10, 5), limit(20, 0), limit(0, 0), limit(7, 6), limit(0, 0)}
	bubble(t, func(w *world) {
		w.put(limit(0, 0))
		w.start()
		for _, step := range steps {
			w.put(step)
			w.sleep(time.Second)
		}
		for _, step := range steps {
			w.stop()
			w.source = nil
			w.put(step)
			w.start()
		}
		w.converged()
	})
	calmBubble(t, func(w *world) {
		w.put(limit(10, 5))
		w.start()
		w.audit()
		w.is()
		w.fake.FailNext(kernel.KindDestination, syscall.ENOMEM)
		w.put(limit(0, 0))
		w.restart()
		w.is()
		var drift []agent.Report
		w.put(limit(10, 5))
		w.takeReports()
		w.sleep(3 * auditInterval)
		for _, r := range w.takeReports() {
			if r.Drift > 0 {
				drift = append(drift, r)
			}
		}
		if len(drift) > 0 {
			w.Errorf("audits report limits as drift: %v", done(drift...))
		}
	})
}

func TestDrainedEndpointIsLogged(t *testing.T) {
	calmBubble(t, func(w *world) {
		busy := func(n uint32) {
			w.fake.SetConnections(webKey, netip.MustParseAddrPort(second+":8080"), n, 0)
			w.audit()
			w.audit()
		}
		logged := func() int { return w.logs.FilterMessageSnippet("endpoint drained").Len() }
		counted := func(stopped, drained int) {
			w.Helper()
			if r := w.lastReport(); r.Stopped != stopped || r.Drained != drained {
				w.Errorf("the report counts %d stopped and %d drained endpoints, want %d and %d", r.Stopped, r.Drained, stopped, drained)
			}
		}
		svc := web(first, second)
		svc.Slices[0].Endpoints[1].Pod = "default/web-1"
		svc.Balancing.Weights.Pods = []model.NamedWeight{{Name: "default/web-1"}}
		w.put(web(first, second))
		w.start()
		busy(3)
		w.put(svc)
		busy(1)
		if n := logged(); n != 0 {
			w.Errorf("logged %d times while a connection is open", n)
		}
		counted(1, 0)
		busy(0)
		if n := logged(); n != 1 {
			w.Errorf("logged %d times for one endpoint", n)
		}
		counted(1, 1)
		w.put(web(first, second))
		busy(1)
		w.put(svc)
		busy(0)
		if n := logged(); n != 2 {
			w.Errorf("logged %d times for an endpoint that was drained twice", n)
		}
	})
}
