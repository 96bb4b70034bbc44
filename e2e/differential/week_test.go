package differential

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-ipvs/kube-ipvs/e2e/differential/draw"
	"github.com/kube-ipvs/kube-ipvs/e2e/differential/judge"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
	"github.com/kube-ipvs/kube-ipvs/internal/watch/watchtest"
)

// week runs a node on the guest's virtual clock, so waiting takes no real time.
type week struct {
	*contender
	t        *testing.T
	world    draw.World
	server   *watchtest.Server
	dir      string // the agent's kubeconfig, token and programs
	token    string
	given    draw.Set
	objects  map[string]draw.Document // the objects in the API server
	created  map[string]time.Time
	births   int
	began    time.Time
	held     []*heldConn
	contacts map[contact]stuck
	probes   int
	hasty    bool // events are at most twenty minutes apart, because few failures take hours to appear
}

// settled is the maximum time to apply a change that nothing delays.
const settled = 30 * time.Second

// TestWeek runs a node through a random week. After each event, it compares tables and connections with the objects.
// KUBE_IPVS_WEEK_SEED selects another week, and KUBE_IPVS_WEEK_DAYS sets its length. After a failure, the test looks
// for a shorter history that also fails. KUBE_IPVS_WEEK_EVENTS repeats that history.
func TestWeek(t *testing.T) {
	labtest.Need(t)
	if virtual, err := cluster.VirtualClock(); err != nil || !virtual {
		t.Fatal("needs a virtual clock, because this test would otherwise take a week: use make week")
	}
	seed, services := weekNumber(t, "SEED", 1), int(weekNumber(t, "SERVICES", 100))
	var events []event
	var first draw.Set
	if !t.Run("alive", func(t *testing.T) {
		w := newWeek(t)
		first, events = history(w.world, uint64(seed), services, weekNumber(t, "DAYS", 7))
		events = chosen(t, events)
		w.hasty = os.Getenv("KUBE_IPVS_WEEK_EVENTS") != ""
		t.Attr("figure", fmt.Sprintf("%.1f days, %d Services, %d events, seed %d", weekNumber(t, "DAYS", 7), services, len(events), int(seed)))
		if at, wrong := w.live(first, events); wrong != nil {
			t.Errorf("event %d of seed %d, %s: %v", at, int(seed), events[max(at, 0)].what, wrong)
			events = events[:at+1]
			return
		}
		w.mustNotLeak()
	}) && os.Getenv("KUBE_IPVS_WEEK_EVENTS") == "" && len(events) > 1 {
		few := shorten(t, first, events)
		t.Logf("make week SEED=%d DAYS=%g SERVICES=%d EVENTS=%s", int(seed), weekNumber(t, "DAYS", 7), services, numbers(events, few))
	}
}

func weekNumber(t *testing.T, name string, otherwise float64) float64 {
	t.Helper()
	text := os.Getenv("KUBE_IPVS_WEEK_" + name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || n <= 0 {
		t.Fatalf("KUBE_IPVS_WEEK_%s is %q; it must be a positive number", name, text)
	}
	return n
}

// chosen keeps the events whose numbers are in KUBE_IPVS_WEEK_EVENTS, such as 3,17.
func chosen(t *testing.T, all []event) (kept []event) {
	t.Helper()
	numbers := os.Getenv("KUBE_IPVS_WEEK_EVENTS")
	if numbers == "" {
		return all
	}
	for text := range strings.SplitSeq(numbers, ",") {
		i, err := strconv.Atoi(text)
		if err != nil || i < 0 || i >= len(all) {
			t.Fatalf("KUBE_IPVS_WEEK_EVENTS: %q is not the number of an event", text)
		}
		kept = append(kept, all[i])
	}
	return kept
}

// shorten looks for fewer events that still fail. Each attempt uses a new node. The number of replayed events
// is limited.
func shorten(t *testing.T, first draw.Set, events []event) []event {
	t.Helper()
	left := 3*len(events) + 50
	fails := func(few []event) bool {
		left -= len(few) + 1
		var wrong error
		t.Run("shorter", func(t *testing.T) {
			w := newWeek(t)
			w.hasty = true
			_, wrong = w.live(first, few)
		})
		return wrong != nil
	}
	for part := len(events) / 2; part > 0; part /= 2 {
		for start := 0; start < len(events)-1 && left > 0; { // the last event must stay, because the failure appeared there
			end := min(start+part, len(events)-1)
			if few := slices.Delete(slices.Clone(events), start, end); fails(few) {
				events = few
			} else {
				start += part
			}
		}
	}
	for _, e := range events {
		t.Logf("%s %s", e.at.Round(time.Second), e.what)
	}
	return events
}

// numbers returns the positions of events in the history.
func numbers(all, few []event) string {
	var places []string
	for _, e := range few {
		places = append(places, strconv.Itoa(slices.IndexFunc(all, func(o event) bool { return o.at == e.at })))
	}
	return strings.Join(places, ",")
}

func newWeek(t *testing.T) *week {
	t.Helper()
	w := &week{
		contender: newContender(t, "week"), t: t, dir: t.TempDir(), objects: map[string]draw.Document{},
		created: map[string]time.Time{}, contacts: map[contact]stuck{},
	}
	w.world, w.balancing = w.contender.world(), cluster.Balancing()
	w.server = watchtest.New(t)
	w.server.Writable = true
	var listener net.Listener
	if err := w.Router.Do(func() (err error) {
		listener, err = net.Listen("tcp", netip.AddrPortFrom(apiAddress, apiPort).String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	w.server.StartAt(listener)
	if err := w.renewToken(0); err != nil {
		t.Fatal(err)
	}
	w.write("kubeconfig", fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: x, cluster: {server: "https://%s:%d", insecure-skip-tls-verify: true}}]
users: [{name: x, user: {tokenFile: %s}}]
contexts: [{name: x, context: {cluster: x, user: x}}]
current-context: x
`, apiAddress, apiPort, filepath.Join(w.dir, "token")))
	w.makePrograms()
	return w
}

func (w *week) write(name, text string) {
	w.t.Helper()
	file := filepath.Join(w.dir, name)
	if err := errors.Join(os.WriteFile(file+".new", []byte(text), 0o755), os.Rename(file+".new", file)); err != nil {
		w.t.Fatal(err)
	}
}

// makePrograms installs wrappers around iptables-restore that hang or fail while a file exists.
func (w *week) makePrograms() {
	w.t.Helper()
	for _, name := range []string{"iptables-restore", "ip6tables-restore"} {
		w.write(name, fmt.Sprintf("#!/bin/sh\n[ -e %[1]s/hang ] && exec sleep 3600\n[ -e %[1]s/fail ] && exit 4\nPATH=${PATH#*:} exec %[2]s \"$@\"\n", w.dir, name))
	}
}

// startAgent starts the agent. If kill is not 0, the agent dies after that many writes.
func (w *week) startAgent(kill int) {
	w.t.Helper()
	command := []string{
		cluster.AgentBinary(w.t), "run", "--kubeconfig", filepath.Join(w.dir, "kubeconfig"), "--hostname-override", w.node.Name,
		"--cluster-cidr", podCIDRs, "--conntrack-max-per-core", "0", "--profiling",
	}
	command = append(command, cluster.DataPlaneFlags()...)
	if kill > 0 {
		command = cluster.KilledAfter(kill, command...)
	}
	w.start(w.t, cluster.Command{Args: command, Env: append(os.Environ(), "PATH="+w.dir+":"+os.Getenv("PATH"))})
}

// give replaces all objects in the API server.
func (w *week) give(set draw.Set) {
	wanted := map[string]draw.Document{}
	for _, d := range set.Documents() {
		wanted[d.Key] = d
		if _, exists := w.objects[d.Key]; !exists {
			w.births++
			w.created[strings.TrimPrefix(d.Key, "Service ")] = time.Date(2030, 1, 1, 0, 0, w.births, 0, time.UTC)
		}
		if w.objects[d.Key].YAML != d.YAML {
			w.server.Put(w.stamped(d))
		}
	}
	for key, d := range w.objects {
		if _, still := wanted[key]; !still {
			w.server.Delete(d.Object.(runtime.Object))
		}
	}
	w.objects, w.given = wanted, set
	w.excuseAll()
	w.forget()
}

// stamped adds fields as an API server does. Each Service gets a different creation time in whole seconds, because
// the oldest Service takes precedence.
func (w *week) stamped(d draw.Document) runtime.Object {
	svc, ok := d.Object.(*corev1.Service)
	if !ok {
		return d.Object.(runtime.Object)
	}
	svc = svc.DeepCopy()
	svc.CreationTimestamp.Time = w.created[svc.Namespace+"/"+svc.Name]
	return svc
}

func (w *week) everything() (all []runtime.Object) {
	for _, d := range w.objects {
		all = append(all, w.stamped(d))
	}
	return all
}

// live plays a history. On failure, it returns the number of the current event.
func (w *week) live(first draw.Set, events []event) (int, error) {
	w.began = time.Now()
	w.give(first)
	w.startAgent(0)
	if err := w.check(0, settled); err != nil {
		return 0, fmt.Errorf("at the start: %w", err)
	}
	for i, e := range events {
		pause := time.Until(w.began.Add(e.at))
		if w.hasty {
			pause = min(pause, 20*time.Minute)
		}
		if err := w.pass(pause); err != nil {
			return i, fmt.Errorf("before it: %w", err)
		}
		if i%20 == 0 {
			w.t.Logf("%s: event %d of %d, %d probes", time.Since(w.began).Round(time.Minute), i, len(events), w.probes)
		}
		if err := w.play(e); err != nil {
			return i, fmt.Errorf("%s after the start: %w", e.at.Round(time.Second), err)
		}
	}
	w.t.Attr("figure", fmt.Sprintf("%d probes, %d connections held", w.probes, len(w.held)))
	return 0, nil
}

// pass waits. Open connections send data every five minutes, because IPVS forgets idle ones after fifteen.
func (w *week) pass(left time.Duration) error {
	for ; left > 0; left -= 5 * time.Minute {
		time.Sleep(min(left, 5*time.Minute))
		if err := w.speak(); err != nil {
			return err
		}
	}
	return nil
}

// check waits until the tables match the objects, and then tests connections.
func (w *week) check(seed uint64, within time.Duration) error {
	c := judge.NewCase(w.world, w.given, w.created)
	var state judge.State
	begin := time.Now()
	err := cluster.Poll(within, func() (err error) {
		if !w.process.Running() {
			return errors.New("the agent has ended")
		}
		if state, err = w.state(); err != nil {
			return err
		}
		if wrong := c.Wrong(state); len(wrong) > 0 {
			return fmt.Errorf("%d differences after %s; first: %s\n%s", len(wrong), within, wrong[0].Text, w.only(wrong[0].Service).YAML())
		}
		return nil
	})
	if err != nil {
		return err
	}
	if within > settled { // the agent writes rules after virtual servers
		if err := w.pass(time.Until(begin.Add(within))); err != nil {
			return err
		}
		if state, err = w.state(); err != nil {
			return err
		}
	}
	if err := w.speak(); err != nil {
		return err
	}
	return errors.Join(w.probe(c, rand.New(rand.NewPCG(seed, 8)), state), w.hold(c), w.healthy())
}

// only returns the objects of one Service.
func (w *week) only(id string) draw.Set {
	set := w.given.Only(map[string]bool{id: true})
	set.Nodes = w.given.Nodes[:1]
	return set
}

func (w *week) healthy() error {
	page, err := w.node.HTTPGet("http://127.0.0.1:10256/healthz")
	if err == nil && page.Status != http.StatusOK {
		err = fmt.Errorf("/healthz: %d %s", page.Status, page.Body)
	}
	return err
}

type leaks struct{ goroutines, descriptors, memory int }

// mustNotLeak compares the agent with a fresh agent that has the same objects.
func (w *week) mustNotLeak() {
	w.t.Helper()
	old := w.leaks()
	w.startAgent(0)
	if err := w.check(1, settled); err != nil {
		w.t.Error(err)
	}
	time.Sleep(time.Hour)
	fresh := w.leaks()
	w.t.Attr("figure", fmt.Sprintf("at the end %+v, a fresh agent after an hour %+v", old, fresh))
	if old.goroutines > fresh.goroutines+5 || old.descriptors > fresh.descriptors+5 || old.memory > fresh.memory*3/2 {
		w.t.Errorf("at the end, the agent has %+v; a fresh agent has %+v after an hour", old, fresh)
	}
}

func (w *week) leaks() (l leaks) {
	w.t.Helper()
	page, err := w.node.HTTPGet("http://127.0.0.1:10249/debug/pprof/goroutine?debug=1")
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := fmt.Sscanf(string(page.Body), "goroutine profile: total %d", &l.goroutines); err != nil {
		w.t.Fatalf("%v in %q", err, page.Body)
	}
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", w.process.PID))
	if err != nil {
		w.t.Fatal(err)
	}
	memory, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", w.process.PID))
	if err != nil {
		w.t.Fatal(err)
	}
	_, anonymous, _ := strings.Cut(string(memory), "Anonymous:")
	if _, err := fmt.Sscan(anonymous, &l.memory); err != nil {
		w.t.Fatalf("%v in %s", err, memory)
	}
	l.descriptors = len(open)
	return l
}
