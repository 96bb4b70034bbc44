package scoreboard

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-ipvs/kube-ipvs/e2e/conformance"
)

func TestPageIsFresh(t *testing.T) {
	results, err := ReadResults("results")
	if err != nil {
		t.Fatal(err)
	}
	have, err := os.ReadFile(filepath.Join("../..", PagePath))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(Page(results), string(have)); d != "" {
		t.Errorf("run go run ./e2e/scoreboard/cmd -page (-want +have):\n%s", d)
	}
}

// TestRowsNameTests: rows are numbered, and their tests and contrasts exist.
func TestRowsNameTests(t *testing.T) {
	for i, row := range Rows {
		if want := fmt.Sprintf("R%d", i+1); row.Name != want {
			t.Errorf("row %s is in the place of %s", row.Name, want)
		}
		for _, p := range row.Probes {
			if p.Kind != Fuzz && !strings.Contains(p.Tests, "Test") && p.Tests != "." {
				t.Errorf("%s: %s runs %q", row.Name, p.Package, p.Tests)
			}
			for _, name := range regexp.MustCompile(`Test\w+`).FindAllString(p.Tests, -1) {
				if !exists(t, p.Package, name) {
					t.Errorf("%s: %s has no %s", row.Name, p.Package, name)
				}
			}
		}
		known := row.Contrast == ""
		for _, c := range conformance.Contrasts {
			known = known || c.Name == row.Contrast
		}
		if !known {
			t.Errorf("%s: there is no contrast %q", row.Name, row.Contrast)
		}
	}
}

// exists returns whether a package has a test whose name begins so.
func exists(t *testing.T, pkg, test string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("../..", pkg, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "\nfunc "+test) {
			return true
		}
	}
	return false
}

func TestOutputOfTests(t *testing.T) {
	var r Result
	r.Add(`=== RUN   TestA
=== RUN   TestA/ipvsadm_-C
    a_test.go:7: kube-ipvs: repaired after 1s
    a_test.go:8: kube-proxy: repaired after 30s
    a_test.go:9: something else
--- FAIL: TestA (1.00s)
    --- PASS: TestA/ipvsadm_-C (1.00s)
--- SKIP: TestB (0.00s)
`, regexp.MustCompile("repaired"))
	r.AddFuzzing("x FuzzX", "fuzz: elapsed: 0s, execs: 5 (1/sec)\nfuzz: elapsed: 3s, execs: 1000 (1/sec)\n", nil)
	r.AddFuzzing("x FuzzY", "panic", errors.New("exit status 1"))
	want := Result{
		Passed: 2, Failed: []string{"TestA", "TestB (skipped)", "x FuzzY"},
		Ours: []string{"ipvsadm -C: repaired after 1s", "x FuzzX: 1000 inputs", "x FuzzY: 0 inputs"},
		Peer: []string{"ipvsadm -C: repaired after 30s"},
	}
	if d := cmp.Diff(want, r); d != "" {
		t.Error(d)
	}
}

func TestStates(t *testing.T) {
	probe := []Probe{{Kind: Go}}
	results := map[string]Result{"green": {Passed: 1}, "short": {Passed: 1, Short: true}, "red": {Passed: 1, Failed: []string{"x"}}, "part": {Passed: 1}, "none": {}}
	for name, want := range map[string]State{"green": Green, "short": Shortened, "red": Red, "none": Red, "absent": Waiting} {
		if have := StateOf(Row{Name: name, Probes: probe}, results); have != want {
			t.Errorf("%s: %s, want %s", name, have, want)
		}
	}
	if have := StateOf(Row{Name: "part", Probes: probe, Missing: "some"}, results); have != Shortened {
		t.Errorf("a row that lacks a part: %s", have)
	}
	if have := StateOf(Row{Name: "green"}, results); have != Uncovered {
		t.Errorf("a row without tests: %s", have)
	}
}
