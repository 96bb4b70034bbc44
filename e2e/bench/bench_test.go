package bench

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/record"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/upstream"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

// caseVariable selects what to measure: PROGRAM/SERVICES, PROGRAM/SERVICES/packets for only the cost of packets, or PROGRAM/SERVICES/storms for
// only many changes at once.
const caseVariable = "KUBE_IPVS_BENCH"

const (
	startLimit = 5 * time.Minute
	// settleLimit is how long to wait for a program to become idle.
	settleLimit = 5 * time.Minute
	// sampled is the number of Services that are probed. Each round sends a request to every Service that is not usable
	// yet, so probing all Services would be too slow.
	sampled = 40
	// changesTime is how long the test waits for changes in total; it makes at least fewestChange and at most mostChanges.
	mostChanges  = 100
	changesTime  = 4 * time.Minute
	fewestChange = 20
	// slowChange omits rolling updates: those of a program that needs longer for a change would take hours.
	slowChange  = 2 * time.Second
	changeLimit = 10 * time.Minute
	// settled is how long a program runs before it counts as idle. idleTime contains at least one of each periodic work of all programs.
	settled  = 3 * time.Minute
	idleTime = 5 * time.Minute
	rollouts = 3
)

// TestPeers measures one program with a given number of Services.
func TestPeers(t *testing.T) {
	labtest.Need(t)
	which := os.Getenv(caseVariable)
	if mode := os.Getenv("LAB_MODE"); mode != "qemu counted skipping" {
		t.Logf("this lab (%s) does not count instructions only, so its figures depend on the machine and its load", mode)
	}
	t.Run(which, func(t *testing.T) {
		result := measure(t, which)
		text, err := json.Marshal(result)
		if err != nil {
			t.Fatal(err)
		}
		t.Attr(record.Figure, string(text))
	})
}

func measure(t *testing.T, which string) *Result {
	t.Helper()
	parts := strings.Split(which+"/", "/")
	name := parts[0]
	services, err := strconv.Atoi(parts[1])
	if err != nil {
		t.Fatalf("%s is not a valid case; use `make bench-peers`", caseVariable)
	}
	b := &bench{world: newWorld(t, services), services: services, random: rand.New(rand.NewPCG(1, uint64(services)))}
	result := &Result{Services: services}
	if alone := withoutProgram[name]; alone.serve != nil {
		result.Program = alone.name
		alone.serve(b, t)
		b.packets(t, result)
		return result
	}
	b.api.Writable = name == upstream.KubeRouter // also makes the server list pods and other kinds that only kube-router watches
	p := programOf(t, name, b.kubeconfig)
	result.Program, result.Version = p.name, p.version
	result.Start = b.start(t, p)
	if result.Start.All == 0 {
		t.Logf("not all Services are usable after %s; skipping the other measurements. End of the program's log:\n%s", startLimit, tail(b.process.Log()))
		return result
	}
	measures := []func(*testing.T, *Result){b.settle, b.idle, b.changes, b.rollout}
	if slices.Contains(parts, "packets") {
		result.Start, measures = nil, []func(*testing.T, *Result){b.settle, b.packets}
		if p.name == "kube-ipvs" {
			measures = append(measures, b.flows)
		}
	}
	if slices.Contains(parts, "storms") {
		result.Start, measures = nil, []func(*testing.T, *Result){b.settle, b.storms}
	}
	for _, measure := range measures {
		measure(t, result)
		so, err := json.Marshal(result)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("so far: %s", so)
	}
	return result
}

type bench struct {
	*world
	services int
	random   *rand.Rand
	process  *cluster.Process
	flips    int
}

func (b *bench) used(t *testing.T) time.Duration {
	t.Helper()
	return cluster.CPUTime(t, b.process.PID) + cluster.ChildrenTime(t, b.process.PID)
}

func (b *bench) start(t *testing.T, p program) *Start {
	t.Helper()
	var at []netip.AddrPort
	for i := range min(sampled, b.services) {
		at = append(at, ordinary(i*b.services/min(sampled, b.services)))
	}
	b.node.ReadAhead(t, append(p.files, p.command[0])...)
	began := monotonic() + probeStart
	type answer struct {
		times []time.Duration
		err   error
	}
	probed := make(chan answer, 1)
	go func() {
		times, err := probe{Kind: "usable", At: at, Begin: began, Limit: startLimit, APIServer: os.Getpid()}.on(b.client)
		probed <- answer{times, err}
	}()
	time.Sleep(began - monotonic())
	b.process = b.node.MustStart(t, p.command...)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("end of the log of %s:\n%s", p.name, tail(b.process.Log()))
		}
	})
	var a answer
	for waiting := true; waiting; {
		select {
		case a = <-probed:
			waiting = false
		case <-time.After(time.Minute):
			t.Logf("not all Services are usable yet; the program has used %s of CPU time", b.used(t))
		}
	}
	if a.err != nil {
		t.Fatal(a.err)
	}
	never := func(d time.Duration) bool { return d == 0 }
	// nth returns the time until n sampled Services were usable.
	reached := slices.Sorted(slices.Values(slices.DeleteFunc(slices.Clone(a.times), never)))
	nth := func(n int) Seconds {
		if len(reached) < n {
			return 0
		}
		return InSeconds(reached[n-1])
	}
	return &Start{
		Half: nth(len(at) / 2), All: nth(len(at)), CPU: InSeconds(b.used(t)),
		Limit: InSeconds(startLimit), Probed: len(at), Usable: len(reached),
	}
}

func tail(log string) string { return log[max(0, len(log)-8<<10):] }

// settle waits until the program is idle after startup. Some programs are never idle.
func (b *bench) settle(t *testing.T, result *Result) {
	started, _ := b.memory(t)
	for deadline := time.Now().Add(settleLimit); time.Now().Before(deadline); {
		before := b.used(t)
		time.Sleep(10 * time.Second)
		if b.used(t)-before < time.Second {
			break
		}
	}
	result.Memory = &Memory{Started: started}
}

// memory returns the anonymous memory of the program, and its pages of files.
func (b *bench) memory(t *testing.T) (anonymous, files Megabytes) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", b.process.PID))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		into := map[string]*Megabytes{"RssAnon:": &anonymous, "RssFile:": &files}[words[0]]
		if into == nil {
			continue
		}
		kB, err := strconv.Atoi(words[1])
		if err != nil {
			t.Fatal(err)
		}
		*into = Megabytes(kB) / 1024
	}
	if anonymous == 0 {
		t.Fatalf("no RssAnon in %s", text)
	}
	return anonymous, files
}

func (b *bench) idle(t *testing.T, result *Result) {
	time.Sleep(settled)
	began, used := time.Now(), b.used(t)
	time.Sleep(idleTime)
	took := time.Since(began)
	result.Idle = &Idle{CPU: Percent(100 * float64(b.used(t)-used) / float64(took)), Took: InSeconds(took)}
	result.Memory.Idle, result.Memory.Files = b.memory(t)
}

// flip changes the only endpoint of a Service. It returns the time until a connection reaches the new endpoint, and the CPU time that the
// program used until shortly after that.
func (b *bench) flip(t *testing.T) (took, used time.Duration) {
	t.Helper()
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // collecting the API server's garbage would delay a change by 50 ms
	b.flips++
	to := b.flips % 2
	begin := monotonic() + probeStart
	changed := make(chan [2]time.Duration, 1)
	go func() {
		time.Sleep(begin + probeRuns - monotonic())
		used, at := b.used(t), monotonic()
		b.api.Put(flippedSlice(to))
		changed <- [2]time.Duration{at, used}
	}()
	landed, err := probe{Kind: "lands", At: []netip.AddrPort{flippedService}, Backend: flipped[to], Begin: begin, Limit: changeLimit}.on(b.client)
	if err != nil {
		t.Fatal(err)
	}
	at := <-changed
	return landed[0] - at[0], b.used(t) - at[1]
}

func (b *bench) changes(t *testing.T, result *Result) {
	var took, used []time.Duration
	waited := time.Duration(0)
	for n := 1; n <= mostChanges && (n <= fewestChange || waited < changesTime); n++ {
		landed, cost := b.flip(t)
		took, used, waited = append(took, landed), append(used, cost), waited+landed
		time.Sleep(time.Duration(b.random.Int64N(int64(2 * time.Second)))) // random, so that changes do not coincide with periodic work
	}
	milliseconds := func(all []time.Duration, p int) Milliseconds { return InMilliseconds(percentile(all, p)) }
	result.Changes = &Changes{
		Count: len(took), Median: milliseconds(took, 50), P99: milliseconds(took, 99), Worst: milliseconds(took, 100),
		CPU: milliseconds(used, 50),
	}
}

// rollout measures rolling updates. Each one is followed by an equally long time without changes, whose CPU time is subtracted. The average of
// a longer time would be wrong: it includes audits, and most updates are too short for one.
func (b *bench) rollout(t *testing.T, result *Result) {
	if result.Changes.Median > InMilliseconds(slowChange) {
		return
	}
	for _, service := range large {
		var updates, calm, took []time.Duration
		for generation := range rollouts {
			used, began := b.used(t), monotonic()
			for part := range service.endpoints / perSlice {
				for replaced := 10; replaced <= perSlice; replaced += 10 {
					b.api.Put(service.slice(part, generation, replaced))
					time.Sleep(200 * time.Millisecond)
				}
			}
			b.flip(t) // returns when the program has processed all earlier changes
			took, updates = append(took, monotonic()-began), append(updates, b.used(t)-used)
			used = b.used(t)
			time.Sleep(took[generation])
			calm = append(calm, b.used(t)-used)
		}
		result.Rollouts = append(result.Rollouts, Rollout{
			Endpoints: service.endpoints, CPU: InSeconds(percentile(updates, 50) - percentile(calm, 50)), Took: InSeconds(percentile(took, 50)),
		})
	}
}

func percentile(all []time.Duration, p int) time.Duration {
	return slices.Sorted(slices.Values(all))[(len(all)*p+99)/100-1]
}
