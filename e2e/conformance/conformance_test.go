package conformance

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/conformance/upstream"
	"github.com/kube-ipvs/kube-ipvs/e2e/record"
)

const root = "../.."

func TestRowsAreNumbered(t *testing.T) {
	for i, row := range Rows {
		if row.Number != i+1 || row.Title == "" {
			t.Errorf("row %d has index %d and the title %q", row.Number, i+1, row.Title)
		}
	}
}

func TestEveryRowIsClaimedOrExcused(t *testing.T) {
	claims, err := FindClaims(filepath.Join(root, "e2e"))
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range Rows {
		claimed := len(claims[row.Number]) > 0 || len(row.UnitTests) > 0
		switch {
		case claimed && row.Excuse != "":
			t.Errorf("row %d (%s) is excused, but %v prove it; remove the excuse", row.Number, row.Title, claims[row.Number])
		case !claimed && row.Excuse == "":
			t.Errorf("row %d (%s): no test claims it with a comment such as `// proves: %d`, and it has no excuse", row.Number, row.Title, row.Number)
		}
		for _, name := range row.UnitTests {
			folder, test, ok := strings.Cut(name, ".")
			if exists, err := testExists(root, folder, test); !ok || err != nil || !exists {
				t.Errorf("row %d: no test %q (%v); want \"directory.TestName\"", row.Number, name, err)
			}
		}
	}
}

// TestRowSpecs: each spec belongs to only one row, and its name excludes labels.
func TestRowSpecs(t *testing.T) {
	rows := map[string]int{}
	for _, row := range Rows {
		for _, name := range row.Specs {
			if rows[name] != 0 || name != specName("[sig-network] "+name+" [LinuxOnly] [Conformance]") {
				t.Errorf("row %d: %q also belongs to row %d, or has labels", row.Number, name, rows[name])
			}
			rows[name] = row.Number
		}
	}
}

// TestContrastsAreComplete: if both columns are equal, Right must say why the case is kept.
func TestContrastsAreComplete(t *testing.T) {
	names := map[string]bool{}
	for _, c := range Contrasts {
		if c.Title == "" || c.Ours == "" || c.Theirs == "" || names[c.Name] {
			t.Errorf("case %q is incomplete, or exists twice", c.Name)
		}
		if (c.Ours == c.Theirs) != (c.Right != "") {
			t.Errorf("case %q: Right must say why kube-proxy is right if, and only if, both columns are equal", c.Name)
		}
		names[c.Name] = true
	}
}

func TestFindClaims(t *testing.T) {
	for _, c := range []struct {
		name, source string
		want         map[int]string
		wantErr      string
	}{
		{"in a test and its subtests", `
func TestA(t *testing.T) {
	// proves: 1
	t.Run("b c", func(t *testing.T) {
		// proves: 2, 3
		t.Run("d", func(t *testing.T) {
			// proves: 4
		})
	})
	t.Run("one line", func(t *testing.T) { help(t) })
	t.Run("e", func(t *testing.T) {
		if true {
			// proves: 5
		}
	})
}`, map[int]string{1: "TestA", 2: "TestA/b_c", 3: "TestA/b_c", 4: "TestA/b_c/d", 5: "TestA/e"}, ""},
		{"in a helper", "func help(t *testing.T) {\n\t// proves: 1\n}", nil, "outside a test function"},
		{"in a subtest with a computed name",
			"func TestA(t *testing.T) {\n\tt.Run(name(), func(t *testing.T) {\n\t\t// proves: 1\n\t})\n}", nil, "literal name"},
		{"with a row that does not exist", "func TestA(t *testing.T) {\n\t// proves: 9999\n}", nil, `no row "9999"`},
		{"with a computed row", "func TestA(t *testing.T) {\n\t// proves: n\n}", nil, `no row "n"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "a_test.go"), []byte("package a\n"+c.source), 0o644); err != nil {
				t.Fatal(err)
			}
			claims, err := FindClaims(dir)
			if c.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), c.wantErr) {
					t.Fatalf("want an error with %q, got %v", c.wantErr, err)
				}
				return
			}
			if err != nil || len(claims) != len(c.want) {
				t.Fatalf("got %v, %v; want %v", claims, err, c.want)
			}
			for row, test := range c.want {
				if len(claims[row]) != 1 || claims[row][0] != test {
					t.Errorf("row %d: got %v, want %s", row, claims[row], test)
				}
			}
		})
	}
}

func TestStates(t *testing.T) {
	row := Row{Number: 1, Title: "x"}
	claims := Claims{1: {"TestA", "TestB"}}
	result := func(test, status string) record.Test { return record.Test{Test: test, Kernel: "6.1", Status: status} }
	for _, c := range []struct {
		name    string
		row     Row
		claims  Claims
		results []record.Test
		want    State
	}{
		{"claimed by no test", row, nil, nil, Open},
		{"excused", Row{Number: 1, Excuse: "because"}, nil, nil, Excused},
		{"proven without packets", Row{Number: 1, UnitTests: []string{"internal/x.TestX"}}, nil, nil, Proven},
		{"never run", row, claims, nil, Untried},
		{"one of two was run", row, claims, []record.Test{result("TestA", "PASS")}, Untried},
		{"both passed", row, claims, []record.Test{result("TestA", "PASS"), result("TestB", "PASS")}, Proven},
		{"one failed", row, claims, []record.Test{result("TestA", "PASS"), result("TestB", "FAIL")}, Failing},
	} {
		if got := StateOf(c.row, c.claims, c.results); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// TestShows: the page uses the results that it needs, and ignores results of deleted tests and cases.
func TestShows(t *testing.T) {
	claims := Claims{1: {"TestA/b"}}
	for _, c := range []struct {
		test record.Test
		want bool
	}{
		{record.Test{Package: "e2e/stories/services", Test: "TestA/b"}, true},
		{record.Test{Package: "e2e/stories/services", Test: "TestA"}, false},
		{record.Test{Package: "internal/x", Test: "TestA/b"}, false},
		{record.Test{Package: upstream.Package, Test: "[sig-network] x"}, true},
		{record.Test{Package: "e2e/stories/kubeproxy", Test: "TestContrasts/internal_Local"}, true},
		{record.Test{Package: "e2e/stories/kubeproxy", Test: "TestContrasts/no_such_case"}, false},
	} {
		if got := claims.Shows(c.test); got != c.want {
			t.Errorf("%s: %v", c.test.Name(), got)
		}
	}
}
