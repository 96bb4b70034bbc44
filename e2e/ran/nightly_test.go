package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-ipvs/kube-ipvs/e2e/record"
)

// newRepository creates a repository with a Makefile, and changes into it. ran passes OUT to make.
func newRepository(t *testing.T) {
	t.Helper()
	t.Chdir(t.TempDir())
	for _, name := range []string{"AUTHOR", "COMMITTER"} {
		t.Setenv("GIT_"+name+"_NAME", "tester")
		t.Setenv("GIT_"+name+"_EMAIL", "tester@example.com")
	}
	must(t, "init", "--quiet")
	commit(t, "Makefile", `
pass:
	@test ! -e uncommitted
	@echo '{"package":"a","test":"TestA","status":"PASS"}' >>$(OUT)/x.jsonl
fail:
	@echo '{"package":"a","test":"TestB","status":"FAIL"}' >>$(OUT)/x.jsonl; exit 1
silent:
	@true
slow:
	@(trap 'touch $(OUT)/ended; exit' INT; : >$(OUT)/begun; while :; do sleep 0.1; done); true
`)
}

func must(t *testing.T, args ...string) string {
	t.Helper()
	out, err := git(".", args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func commit(t *testing.T, file, text string) {
	t.Helper()
	write(t, file, text)
	must(t, "add", file)
	must(t, "commit", "--quiet", "-m", file)
}

func newNight(t *testing.T) (*night, *bytes.Buffer) {
	t.Helper()
	var screen bytes.Buffer
	return &night{dir: t.TempDir(), screen: &screen}, &screen
}

// TestNight: a part tests the last commit instead of the checkout. It writes one line, and the result of each test.
func TestNight(t *testing.T) {
	newRepository(t)
	n, screen := newNight(t)
	write(t, "uncommitted", "")
	for _, c := range []struct {
		targets []string
		state   record.State
		failing []string
	}{
		{[]string{"pass SEED=$SEED"}, record.Passed, nil},
		{[]string{"pass", "fail"}, record.Failed, []string{"a TestB"}},
		{[]string{"pass", "nonsense"}, record.Failed, []string{"make nonsense"}},
		{[]string{"silent"}, record.Failed, []string{"no test ran"}},
	} {
		l, err := n.run(t.Context(), record.Part{Name: "x", Targets: c.targets})
		if err != nil {
			t.Fatalf("%v\n%s", err, screen)
		}
		if want := strings.ReplaceAll(c.targets[0], "$SEED", fmt.Sprint(l.Seed)); l.Targets[0] != want {
			t.Errorf("make %s, want make %s", l.Targets[0], want)
		}
		if l.State != c.state || !reflect.DeepEqual(l.Failing, c.failing) || l.Commit != must(t, "rev-parse", "HEAD") || l.Seed == 0 {
			t.Errorf("%q: %+v\n%s", c.targets, l, screen)
		}
	}
	lines, err := record.Read[record.Line](n.gathered())
	if err != nil || len(lines) != 4 {
		t.Errorf("gathered %d lines, %v", len(lines), err)
	}
	tests, err := record.Read[record.Test](n.results())
	if err != nil || len(tests) != 4 || tests[0].Commit == "" || tests[0].Date == "" || tests[0].Part != "x" {
		t.Errorf("gathered %+v, %v", tests, err)
	}
	aFlakyRunKeepsTheFailure(t, n)
}

func aFlakyRunKeepsTheFailure(t *testing.T, n *night) {
	t.Helper()
	failure := onlyTheLastFailureIsKept(t, n)
	if l, err := n.run(t.Context(), record.Part{Name: "x", Targets: []string{"pass"}}); err != nil || l.State != record.Flaky {
		t.Errorf("%+v, %v", l, err)
	}
	if kept := onlyTheLastFailureIsKept(t, n); !os.SameFile(failure, kept) {
		t.Error("a flaky run replaced the output of the failed one")
	}
}

// onlyTheLastFailureIsKept returns the file with the output of the last failed run.
func onlyTheLastFailureIsKept(t *testing.T, n *night) os.FileInfo {
	t.Helper()
	kept, err := filepath.Glob(filepath.Join(n.dir, "*", "x", "*", "log"))
	want := filepath.Join(n.dir, "failed", "x", "0", "log")
	if err != nil || !reflect.DeepEqual(kept, []string{want}) {
		t.Errorf("kept %q, %v; want the last failure's %q", kept, err, want)
	}
	file, err := os.Stat(want)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// TestExcused: the host may skip tests that passed in a guest or belong to another part.
func TestExcused(t *testing.T) {
	host := func(name, status string) record.Test {
		return record.Test{Package: "e2e/lab", Test: name, Status: status}
	}
	guest := func(name, status string) record.Test {
		return record.Test{Package: "x", Test: name, Status: status, Kernel: "6.1"}
	}
	skipped := record.Test{Package: "x", Test: "TestA", Status: "SKIP"}
	for _, c := range []struct {
		part  string
		tests []record.Test
		left  int
	}{
		{"gate", []record.Test{skipped, guest("TestA", "PASS")}, 1},
		{"gate", []record.Test{skipped, guest("TestA", "FAIL")}, 2},
		{"gate", []record.Test{skipped, guest("TestB", "PASS")}, 2},
		{"gate", []record.Test{guest("TestA", "SKIP"), guest("TestA", "PASS")}, 2},
		{"gate", []record.Test{host("TestInLab/one", "SKIP")}, 0},
		{"gate", []record.Test{host("TestInLab", "FAIL")}, 1},
		{"lab", []record.Test{host("TestInLab", "SKIP")}, 1},
	} {
		if rest := withoutExcused(c.part, c.tests); len(rest) != c.left {
			t.Errorf("%s, %+v: left %+v", c.part, c.tests, rest)
		}
	}
}

// TestInterruptedNight: an interrupted part adds no line to the record. The next run does not repeat completed
// targets, and a resumed part keeps testing its first commit.
func TestInterruptedNight(t *testing.T) {
	newRepository(t)
	began := must(t, "rev-parse", "HEAD")
	n, screen := newNight(t)
	part := record.Part{Name: "x", Targets: []string{"pass", "silent"}, Resumes: true}
	work := filepath.Join(n.dir, "x", began, "0")
	if err := n.checkout(began); err != nil {
		t.Fatal(err)
	}
	if _, err := n.step(t.Context(), work, "pass", true); err != nil {
		t.Fatal(err)
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	commit(t, "other", "")
	if _, err := n.run(stopped, part); err == nil {
		t.Fatal("no error after an interrupt")
	}
	if lines, err := record.Read[record.Line](n.gathered()); len(lines) > 0 || err != nil {
		t.Errorf("an interrupted run left %v, %v", lines, err)
	}
	l, err := n.run(t.Context(), part)
	if err != nil || l.Commit != began || l.Passed != 1 || strings.Count(screen.String(), "make pass") != 1 {
		t.Errorf("%+v, %v\n%s", l, err, screen)
	}
	part.Resumes = false
	if l, err = n.run(t.Context(), part); err != nil || l.Commit == began {
		t.Errorf("%+v, %v", l, err)
	}
}

// TestInterruptedTarget: an interrupted target leaves no processes behind.
func TestInterruptedTarget(t *testing.T) {
	newRepository(t)
	n, _ := newNight(t)
	if err := n.checkout(must(t, "rev-parse", "HEAD")); err != nil {
		t.Fatal(err)
	}
	work := filepath.Join(n.dir, "x")
	stopped, stop := context.WithCancel(t.Context())
	go func() {
		defer stop()
		for t.Context().Err() == nil {
			if _, err := os.Stat(filepath.Join(work, "out", "begun")); err == nil {
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	if _, err := n.step(stopped, work, "slow", false); err == nil {
		t.Error("no error after an interrupt")
	}
	if _, err := os.Stat(filepath.Join(work, "out", "ended")); err != nil {
		t.Errorf("the target's shell received no signal: %v", err)
	}
}

// TestCommitsAfter: commits that change only the record do not count, and a commit outside the history is an error.
func TestCommitsAfter(t *testing.T) {
	newRepository(t)
	first := must(t, "rev-parse", "HEAD")
	commit(t, record.LinesFile, "")
	if n := commitsAfter(first); n != 0 {
		t.Errorf("a commit that changes only the record counts as %d commits", n)
	}
	commit(t, "other", "")
	if n := commitsAfter(first); n != 1 {
		t.Errorf("%d commits after the first", n)
	}
	must(t, "checkout", "--quiet", "--orphan", "elsewhere")
	must(t, "commit", "--quiet", "-m", "elsewhere")
	if n := commitsAfter(first); n != record.Unknown {
		t.Errorf("counted %d commits after a commit outside the history", n)
	}
}

// TestChoose: parts that have not passed come first, and then the oldest parts that fit.
func TestChoose(t *testing.T) {
	at := func(name string, minutes int, date string, state record.State) record.Age {
		return record.Age{Part: record.Part{Name: name, Minutes: minutes}, Line: &record.Line{Date: date, State: state}}
	}
	ages := []record.Age{
		at("new", 20, "2030-01-03T00:00:00Z", record.Passed), at("old", 50, "2030-01-01T00:00:00Z", record.Passed),
		at("red", 30, "2030-01-04T00:00:00Z", record.Failed), {Part: record.Part{Name: "never", Minutes: 10}},
	}
	for hours, want := range map[float64]string{0: "red never old new", 1: "red never new", 0.2: "never"} {
		chosen, err := choose("", hours, ages)
		var names []string
		for _, p := range chosen {
			names = append(names, p.Name)
		}
		if got := strings.Join(names, " "); err != nil || got != want {
			t.Errorf("%g hours: %q, %v, want %q", hours, got, err, want)
		}
	}
	if chosen, err := choose("kernel-6.*", 0, ages); err != nil || len(chosen) != 2 || chosen[0].Name != "kernel-6.1" || chosen[1].Name != "kernel-6.12" {
		t.Errorf("a pattern: %v, %v", chosen, err)
	}
	if _, err := choose("nonsense", 0, ages); err == nil || !strings.Contains(err.Error(), "firewalls, new-node") {
		t.Errorf("a part that does not exist: %v", err)
	}
	if _, err := choose("", 0.1, ages); err == nil {
		t.Error("no error when nothing fits")
	}
}

func TestPagesAreFresh(t *testing.T) {
	t.Chdir("../..")
	p, err := readPages(nil)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range p.texts {
		have, err := os.ReadFile(path)
		if d := cmp.Diff(want, string(have)); d != "" || err != nil {
			t.Errorf("%s is out of date (%v): make pages (-want +have)\n%s", path, err, d)
		}
	}
}

func TestNightlyNamesParts(t *testing.T) {
	for _, l := range leftOut() {
		if _, ok := record.Named(l.part); !ok && l.part != "none" {
			t.Errorf("nightly.txt: there is no part %q", l.part)
		}
	}
}

func TestNewest(t *testing.T) {
	var lines []record.Line
	for i := range keptLines + 2 {
		lines = append(lines, record.Line{Part: "a", Seconds: i}, record.Line{Part: "b", Seconds: i})
	}
	if kept := newest(lines); len(kept) != 2*keptLines || kept[0].Seconds != 2 {
		t.Errorf("%+v", kept)
	}
}
