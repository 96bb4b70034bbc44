package differential

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/differential/draw"
	"github.com/kube-ipvs/kube-ipvs/e2e/differential/judge"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/upstream"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

const variable = "KUBE_IPVS_DIFFERENTIAL_"

// plan contains the settings from environment variables.
type plan struct {
	seed                                  uint64
	first, batches, services, transitions int
	state                                 string
	replay                                []string
}

func readPlan(t *testing.T) plan {
	t.Helper()
	number := func(name string, otherwise int) int {
		text := os.Getenv(variable + name)
		if text == "" {
			return otherwise
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			t.Fatalf("%s%s is %q; it must be a number of at least 0", variable, name, text)
		}
		return n
	}
	p := plan{
		seed:        uint64(number("SEED", 1)),
		first:       number("FIRST", 1),
		batches:     number("BATCHES", 1),
		services:    number("SERVICES", 60),
		transitions: number("TRANSITIONS", 2),
	}
	if name := os.Getenv(variable + "STATE"); name != "" {
		p.state = filepath.Join(resultsDir(), name)
	}
	if files := os.Getenv(variable + "REPLAY"); files != "" {
		p.replay = strings.Split(files, ",")
	}
	for i, path := range p.replay {
		if !filepath.IsAbs(path) {
			root, err := upstream.Root()
			if err != nil {
				t.Fatal(err)
			}
			p.replay[i] = filepath.Join(root, path)
		}
	}
	return p
}

type record struct {
	Seed        uint64         `json:"seed"`
	Done        []int          `json:"done"` // numbers of batches
	Services    int            `json:"services"`
	Features    map[string]int `json:"features"`
	Changes     map[string]int `json:"changes"`
	Transitions int            `json:"transitions"`
	Tally       *judge.Tally   `json:"tally"`
}

func readRecord(t *testing.T, p plan) *record {
	t.Helper()
	fresh := &record{Seed: p.seed, Features: map[string]int{}, Changes: map[string]int{}, Tally: judge.NewTally()}
	if p.state == "" {
		return fresh
	}
	content, err := os.ReadFile(p.state)
	if os.IsNotExist(err) {
		return fresh
	}
	r := &record{}
	if err == nil {
		err = json.Unmarshal(content, r)
	}
	if err != nil {
		t.Fatalf("read the state of an earlier run: %v; remove %s to start from the beginning", err, p.state)
	}
	if r.Seed != p.seed {
		t.Fatalf("%s belongs to a run with seed %d, but this run has seed %d; use the same seed, or remove the file", p.state, r.Seed, p.seed)
	}
	return r
}

func (r *record) save(t *testing.T, p plan) {
	t.Helper()
	if p.state == "" {
		return
	}
	content, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		err = os.WriteFile(p.state+".new", content, 0o644)
	}
	if err == nil {
		err = os.Rename(p.state+".new", p.state)
	}
	if err != nil {
		t.Fatalf("save the state of the run: %v", err)
	}
}

// TestDifferential fails if the programs differ and no rule explains the difference.
func TestDifferential(t *testing.T) {
	labtest.Need(t)
	runOn(t, newStage(t, false))
}

func runOn(t *testing.T, s *stage) {
	t.Helper()
	p := readPlan(t)
	r := &run{stage: s, plan: p, record: readRecord(t, p)}
	if p.replay != nil {
		r.replay(t)
		return
	}
	for batch := p.first; batch < p.first+p.batches && !t.Failed(); batch++ {
		if !slices.Contains(r.record.Done, batch) {
			r.batch(t, batch)
		}
	}
	if t.Failed() {
		t.Logf("\n%s", r.record.Tally)
		return
	}
	t.Attr("figure", fmt.Sprintf("seed %d: %d Services, %d transitions; compared %s", p.seed, r.record.Services, r.record.Transitions, r.record.Tally.Counts()))
	r.report(t)
}

type run struct {
	*stage
	plan   plan
	record *record
	shrunk bool // Shrinking is slow, so it happens only once.
}

// batch draws a batch, changes it, and compares after each step. The record includes only complete batches.
func (r *run) batch(t *testing.T, number int) {
	t.Helper()
	drawer := draw.New(r.world, r.plan.seed, number)
	set := drawer.Batch(r.plan.services)
	tally, changes := r.record.Tally, map[string]int{}
	drawn, services := draw.Count(r.world, set), len(set.Services)
	r.compare(t, set, label{number, 0}, tally)
	for i := range r.plan.transitions {
		next, counts := drawer.Change(set)
		for kind, n := range counts {
			changes[kind] += n
		}
		r.hold(t)
		r.compare(t, next, label{number, i + 1}, tally)
		set = next
	}
	if t.Failed() {
		return
	}
	r.record.Done = append(r.record.Done, number)
	r.record.Services += services
	r.record.Transitions += r.plan.transitions
	for name, n := range drawn {
		r.record.Features[name] += n
	}
	for kind, n := range changes {
		r.record.Changes[kind] += n
	}
	r.record.save(t, r.plan)
}

// label identifies a step of the run.
type label struct{ batch, transition int }

func (l label) String() string { return fmt.Sprintf("batch %d, transition %d", l.batch, l.transition) }

// compare gives a set to both programs and reports bugs.
func (r *run) compare(t *testing.T, set draw.Set, at label, tally *judge.Tally) {
	t.Helper()
	begin := time.Now()
	t.Logf("seed %d, %s: %d Services", r.plan.seed, at, len(set.Services))
	before := r.given
	r.configure(t, set.NodePorts)
	r.give(t, set)
	bugs, seen := r.judge(t, set, at)
	tally.Add(seen)
	t.Logf("  compared after %s", time.Since(begin).Round(100*time.Millisecond))
	if len(bugs) == 0 {
		return
	}
	for i, b := range bugs {
		if i == 20 {
			t.Errorf("... and %d more", len(bugs)-i)
			break
		}
		t.Errorf("seed %d, %s: %s", r.plan.seed, at, r.show(b))
	}
	r.keep(t, before, set, bugs[0], at)
}

// judge returns lasting differences. Closing connections, a sync in progress, or a busy machine can cause
// temporary differences.
func (r *run) judge(t *testing.T, set draw.Set, at label) ([]judge.Bug, *judge.Tally) {
	t.Helper()
	r.settle(t)
	bugs, tally := r.findBugs(t, set, at)
	if len(bugs) == 0 {
		return nil, tally
	}
	t.Logf("  %d differences; checking whether they persist; first: %s", len(bugs), r.show(bugs[0]))
	r.give(t, set) // changes only the marker
	r.settle(t)
	lasting, tally := r.findBugs(t, set, at)
	return slices.DeleteFunc(lasting, func(b judge.Bug) bool { return !isAmong(bugs, b) }), tally
}

func isAmong(bugs []judge.Bug, bug judge.Bug) bool {
	return slices.ContainsFunc(bugs, func(b judge.Bug) bool { return b.Item.Name() == bug.Item.Name() })
}

func (r *run) findBugs(t *testing.T, set draw.Set, at label) ([]judge.Bug, *judge.Tally) {
	t.Helper()
	created, err := r.created(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := r.theirs.state()
	if err != nil {
		t.Fatal(err)
	}
	ours, err := r.ours.state()
	if err != nil {
		t.Fatal(err)
	}
	c, tally := judge.NewCase(r.world, set, created), judge.NewTally()
	verdict := c.Judge
	if r.planes {
		verdict = planeBugs
	}
	bugs := verdict(judge.Items(theirs, ours), tally)
	rng := rand.New(rand.NewPCG(r.plan.seed, uint64(at.batch)<<16|uint64(at.transition)))
	begin := time.Now()
	items := r.connect(r.sample(c, theirs, ours, rng, tally), theirs, ours)
	t.Logf("  %d connections tried in %s", len(items), time.Since(begin).Round(100*time.Millisecond))
	return append(bugs, verdict(items, tally)...), tally
}

func (r *run) show(b judge.Bug) string {
	if r.planes {
		return strings.NewReplacer("kube-proxy:", "IPVS:      ", "kube-ipvs: ", "nftables:  ").Replace(b.Item.String())
	}
	return b.String()
}

// keep saves the failing step, and a smaller one that also fails.
func (r *run) keep(t *testing.T, before, now draw.Set, bug judge.Bug, at label) {
	t.Helper()
	name := fmt.Sprintf("seed-%d-batch-%d-transition-%d", r.plan.seed, at.batch, at.transition)
	t.Logf("saved: %s, %s", r.save(t, name+"-before.yaml", before), r.save(t, name+".yaml", now))
	if r.shrunk {
		return
	}
	r.shrunk = true
	suspects := judge.NewCase(r.world, now, nil).Suspects(bug.Item.Key.Addr.Addr())
	const tries = 6
	small := draw.Shrink(now, suspects, tries, func(few draw.Set) bool {
		r.configure(t, few.NodePorts)
		r.give(t, few)
		bugs, _ := r.judge(t, few, at)
		return isAmong(bugs, bug)
	})
	t.Logf("shrunk to %d of %d Services: %s", len(small.Services), len(now.Services), r.save(t, name+"-small.yaml", small))
	if len(small.Services) <= 3 {
		t.Logf("%s", small.YAML())
	}
}

// save writes a file for KUBE_IPVS_DIFFERENTIAL_REPLAY.
func (r *run) save(t *testing.T, name string, set draw.Set) string {
	t.Helper()
	path := filepath.Join(resultsDir(), name)
	if err := os.WriteFile(path, []byte(set.YAML()), 0o644); err != nil {
		t.Errorf("save the failing objects: %v", err)
	}
	return path
}

// resultsDir returns a directory that survives the lab.
func resultsDir() string {
	if dir := os.Getenv("LAB_OUT"); dir != "" {
		return dir
	}
	return os.TempDir()
}

// replay applies saved sets one after the other.
func (r *run) replay(t *testing.T) {
	t.Helper()
	for i, path := range r.plan.replay {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		set, err := draw.Parse(content)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		r.hold(t)
		tally := judge.NewTally()
		r.compare(t, set, label{0, i}, tally)
		t.Logf("\n%s", tally)
	}
}

// report prints the tables. It fails if a feature, change or rule was not covered.
func (r *run) report(t *testing.T) {
	t.Helper()
	batches := len(r.record.Done)
	t.Attr("figure", fmt.Sprintf("%d batches with %d Services and %d transitions", batches, r.record.Services, r.record.Transitions))
	features, missing := draw.FeatureTable(r.record.Features, batches)
	t.Logf("seed %d: %d batches with %d Services and %d transitions\n\n%s", r.plan.seed, batches, r.record.Services, r.record.Transitions, features)
	for _, kind := range draw.Kinds {
		t.Logf("%-60s %6d", kind, r.record.Changes[kind])
		if r.record.Changes[kind] == 0 && r.plan.transitions > 0 {
			missing = append(missing, kind+": never")
		}
	}
	if !r.planes {
		t.Logf("\n%s", r.record.Tally)
	}
	if len(missing) > 0 {
		t.Errorf("below the minimum: %s", strings.Join(missing, "; "))
	}
	if r.planes {
		return
	}
	for _, fault := range r.record.Tally.Faults(batches) {
		t.Error(fault)
	}
}
