package record

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

const root = "../.."

// TestRedIsKnown: docs/known-limits.md lists each failing test in a part's newest run, with the reason.
func TestRedIsKnown(t *testing.T) {
	lines, err := Read[Line](filepath.Join(root, LinesFile))
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs/known-limits.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range unlisted(lines, string(page)) {
		t.Errorf("%s: fix it, or list it with its reason in docs/known-limits.md", name)
	}
}

func unlisted(lines []Line, page string) (names []string) {
	_, section, _ := strings.Cut(page, "## Failing long tests")
	section = strings.Join(strings.Fields(section), " ") // undoes the wrapping of lines
	for _, a := range Ages(lines, func(string) int { return 0 }) {
		if a.Line == nil {
			continue
		}
		for _, name := range a.Line.Failing {
			if !strings.Contains(section, "`"+name+"`") {
				names = append(names, a.Part.Name+": "+name)
			}
		}
	}
	return names
}

func TestUnlisted(t *testing.T) {
	lines := []Line{{Part: "fuzz", Failing: []string{"old"}}, {Part: "fuzz", Failing: []string{"a TestA", "a TestB"}}}
	got := unlisted(lines, "`a TestB`\n## Failing long tests\n- `a\n  TestA` fails because\n")
	if want := []string{"fuzz: a TestB"}; !reflect.DeepEqual(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestPartsAreComplete: names are unique, the Makefile contains every target, and the workflow runs every part.
func TestPartsAreComplete(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	workflow, err := os.ReadFile(filepath.Join(root, ".github/workflows/nightly.yml"))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, p := range Parts {
		if seen[p.Name] || p.Proves == "" || p.Minutes == 0 || len(p.Targets) == 0 || p.Minutes > 120 && !p.Resumes {
			t.Errorf("%+v: exists twice, is incomplete, or takes more than two hours but cannot resume", p)
		}
		seen[p.Name] = true
		for _, target := range p.Targets {
			if name, _, _ := strings.Cut(target, " "); !strings.Contains(string(makefile), "\n"+name+":") {
				t.Errorf("%s: the Makefile has no target %s", p.Name, name)
			}
		}
	}
	if list := "part: [" + Names() + "]"; !strings.Contains(string(workflow), list) {
		t.Errorf("nightly.yml should have %q", list)
	}
}

// TestConclude: a run never passes if a test was skipped or did not run, or if a target failed without a failed test.
func TestConclude(t *testing.T) {
	test := func(name, status string) Test {
		return Test{Package: "a", Test: name, Status: status, Kernel: "6.1.0-56-amd64", Lab: "qemu counted"}
	}
	for _, c := range []struct {
		name    string
		tests   []Test
		broken  []string
		state   State
		failing []string
	}{
		{"passed", []Test{test("A", "PASS"), test("B", "PASS")}, nil, Passed, nil},
		{"failed", []Test{test("A", "PASS"), test("B", "FAIL")}, []string{"make x"}, Failed, []string{"a B"}},
		{"skipped", []Test{test("A", "SKIP")}, nil, Failed, []string{"a A"}},
		{"skipped by one target", []Test{test("A", "SKIP"), test("A", "PASS")}, nil, Passed, nil},
		{"a subtest failed", []Test{test("A/b", "FAIL"), test("A", "FAIL")}, []string{"make x"}, Failed, []string{"a A/b"}},
		{"no test failed, but make", []Test{test("A", "PASS")}, []string{"make x"}, Failed, []string{"make x"}},
		{"nothing ran", nil, nil, Failed, []string{"no test ran"}},
		{"passed when it was repeated", []Test{test("A", "FAIL"), test("A", "PASS")}, nil, Flaky, []string{"a A"}},
		{"failed when it was repeated", []Test{test("A", "PASS"), test("A", "FAIL")}, nil, Failed, []string{"a A"}},
	} {
		l := Line{}.Conclude(c.tests, c.broken)
		if l.State != c.state || !reflect.DeepEqual(l.Failing, c.failing) {
			t.Errorf("%s: %+v", c.name, l)
		}
		if len(c.tests) > 0 && (l.Kernel != "6.1.0-56-amd64" || l.Passed+l.Failed == 0) {
			t.Errorf("%s: %+v", c.name, l)
		}
	}
	again := Line{Part: "x", Commit: "1", State: Passed}
	if l := again.After([]Line{{Part: "x", Commit: "1", State: Failed, Failing: []string{"a A"}}}); l.State != Flaky || len(l.Failing) != 1 {
		t.Errorf("failed before at the same commit: %+v", l)
	}
	if l := again.After([]Line{{Part: "x", Commit: "0", State: Failed}}); l.State != Passed {
		t.Errorf("failed at another commit: %+v", l)
	}
}

func TestUnproven(t *testing.T) {
	now := time.Date(2030, 1, 31, 0, 0, 0, 0, time.UTC)
	line := Line{Part: Parts[0].Name, Commit: "1234567890", Date: "2030-01-30T00:00:00Z", State: Passed}
	for want, change := range map[string]func(*Line, *int){
		"":             func(*Line, *int) {},
		"201 commits":  func(_ *Line, n *int) { *n = 201 },
		"unknown age":  func(_ *Line, n *int) { *n = Unknown },
		"30 days":      func(l *Line, _ *int) { l.Date = "2029-12-31T00:00:00Z" },
		"failed: a A":  func(l *Line, _ *int) { l.State, l.Failing = Failed, []string{"a A"} },
		"flaky: a A":   func(l *Line, _ *int) { l.State, l.Failing = Flaky, []string{"a A"} },
		"at yesterday": func(l *Line, _ *int) { l.Date = "yesterday" },
	} {
		l, commits := line, 3
		change(&l, &commits)
		why := Ages([]Line{{Part: l.Part, State: Failed}, l}, func(string) int { return commits })[0].Unproven(now)
		if (want == "") != (why == "") || !strings.Contains(why, want) {
			t.Errorf("want %q, got %q", want, why)
		}
	}
	if why := Ages(nil, nil)[0].Unproven(now); why != "has not run" {
		t.Errorf("got %q", why)
	}
}

// TestReplace: a result replaces only an older result of the same part, kernel and clock.
func TestReplace(t *testing.T) {
	old := Test{Package: "a", Test: "A", Status: "FAIL", Kernel: "6.1.0-55", Lab: "qemu counted"}
	other, newer := old, old
	other.Kernel = "6.12.1"
	newer.Kernel, newer.Status = "6.1.0-56", "PASS"
	file := filepath.Join(t.TempDir(), "x.jsonl")
	if err := Write(file, Replace([]Test{old, other}, []Test{newer})); err != nil {
		t.Fatal(err)
	}
	if err := Append(file, Test{Package: "b", Test: "B"}); err != nil {
		t.Fatal(err)
	}
	got, err := ReadTests(filepath.Dir(file))
	if want := []Test{newer, other, {Package: "b", Test: "B"}}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestKernelName(t *testing.T) {
	for _, c := range []struct{ release, lab, want string }{
		{"6.1.0-56-amd64", "qemu tcg", "6.1"},
		{"6.12.95+deb12-amd64", "qemu kvm", "6.12"},
		{"7.2-rc1", "native", "7.2"},
		{"7.2.13-lab", "uml virtual", "7.2 (UML)"},
		{"7.2.13-lab", "uml virtual nftables", "7.2 (UML), nftables"},
		{"7.2.13-lab", "uml virtual userspace", "7.2 (UML), userspace"},
		{"", "", ""},
	} {
		if got := KernelName(c.release, c.lab); got != c.want {
			t.Errorf("KernelName(%q, %q) = %q, want %q", c.release, c.lab, got, c.want)
		}
	}
}
