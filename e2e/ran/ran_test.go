package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestCheck: a test counts as not run if it failed, was skipped, or passed only in a subtest.
func TestCheck(t *testing.T) {
	root, results := t.TempDir(), t.TempDir()
	write(t, filepath.Join(root, "a/a_test.go"), `package a
import "testing"
func TestMain(m *testing.M) {}
func TestRan(t *testing.T) {}
func TestSkipped(t *testing.T) {}
func TestPart(t *testing.T) {}
func Testhelper(t *testing.T) {}
func FuzzForgotten(f *testing.F) {}
`)
	write(t, filepath.Join(root, "a/other_windows_test.go"), "package a\nfunc TestElsewhere(t *testing.T) {}\n")
	write(t, filepath.Join(root, "e2e/bench/b_test.go"), "package b\nfunc TestPeers(t *testing.T) {}\n")
	if got := forgotten("bench-1000", root, nil); len(got) != 1 || got[0] != "e2e/bench TestPeers did not run" {
		t.Errorf("not run by the part that should run it: %q", got)
	}
	write(t, filepath.Join(results, "lab/x.jsonl"), `{"package":"a","test":"TestRan","status":"PASS","kernel":"6.1"}
{"package":"a","test":"TestPart/x","status":"PASS"}
`)
	write(t, filepath.Join(results, "host.jsonl"), `{"package":"a","test":"TestSkipped","status":"SKIP"}`)
	var screen bytes.Buffer
	err := check(&screen, root, []string{results})
	want := "ran nowhere: a TestSkipped\nran nowhere: a TestPart\nran nowhere: a FuzzForgotten\n5 test functions: 1 ran, 1 are named in e2e/ran/nightly.txt, 3 ran nowhere\n"
	if err == nil || screen.String() != want {
		t.Errorf("%v, printed\n%swant\n%s", err, &screen, want)
	}
}

// TestReporter: the output shows packages and failures, and the file lists every test.
func TestReporter(t *testing.T) {
	events := `{"Action":"run","Package":"` + module + `a","Test":"TestGood"}
{"Action":"output","Package":"` + module + `a","Test":"TestGood","Output":"    quiet\n"}
{"Action":"attr","Package":"` + module + `a","Test":"TestGood","Key":"figure","Value":"3 kills"}
{"Action":"pass","Package":"` + module + `a","Test":"TestGood"}
{"Action":"output","Package":"` + module + `a","Test":"TestBad","Output":"=== RUN   TestBad\n"}
{"Action":"output","Package":"` + module + `a","Test":"TestBad","Output":"    loud\n"}
{"Action":"fail","Package":"` + module + `a","Test":"TestBad"}
{"Action":"output","Package":"` + module + `a","Output":"FAIL\n"}
{"Action":"fail","Package":"` + module + `a"}
not JSON
`
	var screen, results bytes.Buffer
	if err := (&reporter{screen: &screen, results: json.NewEncoder(&results)}).follow(strings.NewReader(events)); err != nil {
		t.Fatal(err)
	}
	if want := "    loud\nFAIL\nnot JSON\n"; screen.String() != want {
		t.Errorf("printed %q, want %q", &screen, want)
	}
	want := `{"package":"a","test":"TestGood","status":"PASS","figures":["3 kills"]}
{"package":"a","test":"TestBad","status":"FAIL"}
`
	if results.String() != want {
		t.Errorf("recorded %s, want %s", &results, want)
	}
}

// TestAgentSource: the digest covers the agent's packages and requirements, but no tests and no other commands.
func TestAgentSource(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "go.mod", "module x\n\ngo 1.24\n")
	write(t, "internal/daemon/a.go", "package daemon\n\nimport _ \"x/internal/used\"\n")
	write(t, "internal/used/u.go", "package used\n\nimport _ \"embed\"\n\n//go:embed u.txt\nvar text string\n")
	write(t, "internal/used/u.txt", "old")
	write(t, "internal/other/o.go", "package other\n")
	source := func() string {
		digest, err := agentSource(".")
		if err != nil {
			t.Fatal(err)
		}
		return digest
	}
	last := source()
	for _, c := range []struct {
		path, text string
		counts     bool
	}{
		{"internal/other/o.go", "package other\n\nvar new bool\n", false},
		{"internal/used/u_test.go", "package used\n", false},
		{"internal/used/u.txt", "new", true},
		{"internal/daemon/a.go", "package daemon\n", true},
		{"go.mod", "module x\n\ngo 1.25\n", true},
	} {
		write(t, c.path, c.text)
		now := source()
		if counts := now != last; counts != c.counts {
			t.Errorf("a change of %s counts: %v", c.path, counts)
		}
		last = now
	}
}
