package scoreboard

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-ipvs/kube-ipvs/e2e/conformance"
	"github.com/kube-ipvs/kube-ipvs/e2e/record"
)

// TestRowsNameTests: rows are numbered consecutively, and their tests and contrasts exist.
func TestRowsNameTests(t *testing.T) {
	for i, row := range Rows {
		if want := fmt.Sprintf("R%d", i+1); row.Name != want {
			t.Errorf("got row %s, want row %s", row.Name, want)
		}
		for _, p := range row.Probes {
			if _, ok := record.Named(p.Part); !ok && p.Part != "" {
				t.Errorf("%s: there is no part %q", row.Name, p.Part)
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

// exists reports whether a package has a test with this prefix.
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

// TestFigures: a row shows the figures of its own tests and part, kube-proxy's figures separately, and every failure.
func TestFigures(t *testing.T) {
	row := Row{Probes: []Probe{{Package: "e2e/a", Tests: "^TestA$", Part: "big"}, {Package: "internal/...", Tests: "^Fuzz"}}}
	all := []record.Test{
		{Package: "e2e/a", Part: "big", Test: "TestA", Status: "PASS"},
		{Package: "e2e/a", Part: "big", Test: "TestA/ipvsadm_-C", Status: "PASS", Figures: []string{"kube-ipvs: repaired after 1s", "kube-proxy: repaired after 30s"}},
		{Package: "e2e/a", Part: "big", Test: "TestA/silent", Status: "PASS"},
		{Package: "e2e/a", Part: "big", Test: "TestAB", Status: "FAIL"},
		{Package: "e2e/a", Part: "small", Test: "TestA", Status: "PASS", Figures: []string{"little"}},
		{Package: "internal/x", Test: "FuzzX", Status: "FAIL", Figures: []string{"1000 inputs"}},
	}
	found := row.results(all)
	if d := cmp.Diff("ipvsadm -C: repaired after 1s<br>1000 inputs<br>failed: `FuzzX`<br>tests passed: 2", ours(row, found)); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff("ipvsadm -C: repaired after 30s", theirs(row, found)); d != "" {
		t.Error(d)
	}
}

// TestSummary: many figures of one kind are shown as one line, with the medians and the worst.
func TestSummary(t *testing.T) {
	var all []figure
	for i := range 11 {
		all = append(all, figure{fmt.Sprint("fault ", i), fmt.Sprintf("noticed %ds after fault %d, 7 flows (10.244.1.2:%d), %d inputs", i, i, 30000+i, 10*i), true})
	}
	all = append(all, figure{"another", "kept", true})
	want := []string{"11 results: noticed 5s (longest 10s: fault 10) after it, 7 flows, 50 (least 0: fault 0) inputs", "another: kept"}
	if d := cmp.Diff(want, summarize(all)); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{all[0].String(), all[1].String()}, summarize(all[:2])); d != "" {
		t.Error(d)
	}
}

// TestRowsHaveCommands: make scoreboard measures each row, and the part measures the rows that need it.
func TestRowsHaveCommands(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	part, _ := record.Named(full)
	targets := strings.Join(part.Targets, "\n") + "\n"
	for _, row := range Rows {
		if !regexp.MustCompile(`(?m)^` + row.Name + `:( \w+)?$`).Match(makefile) {
			t.Errorf("the Makefile has no target %s", row.Name)
		}
		needs := slices.ContainsFunc(row.Probes, func(p Probe) bool { return p.Part == full })
		if has := regexp.MustCompile(`\b` + row.Name + `\b`).MatchString(targets); has != needs {
			t.Errorf("part %s measures row %s: %t, but the row needs it: %t", full, row.Name, has, needs)
		}
	}
}

func TestStates(t *testing.T) {
	row := Row{Probes: []Probe{{Package: "a", Tests: "^TestA$"}, {Package: "a", Tests: "^TestB$"}}}
	result := func(name, status string) record.Test { return record.Test{Package: "a", Test: name, Status: status} }
	partly := row
	partly.Missing = "some"
	for _, c := range []struct {
		row  Row
		all  []record.Test
		want State
	}{
		{Row{}, nil, Uncovered},
		{row, nil, Waiting},
		{row, []record.Test{result("TestA", "PASS")}, Waiting},
		{row, []record.Test{result("TestA", "PASS"), result("TestB", "PASS")}, Green},
		{partly, []record.Test{result("TestA", "PASS"), result("TestB", "PASS")}, Partly},
		{row, []record.Test{result("TestA", "SKIP")}, Red},
		{row, []record.Test{result("TestA", "PASS"), result("TestB", "PASS"), result("TestB/x", "FAIL")}, Red},
	} {
		if have := StateOf(c.row, c.all); have != c.want {
			t.Errorf("%v: %s, want %s", c.all, have, c.want)
		}
	}
}
