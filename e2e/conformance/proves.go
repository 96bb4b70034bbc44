package conformance

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Result is what one test found about one row on one kernel.
type Result struct {
	Row    int    `json:"row"`
	Test   string `json:"test"`
	Kernel string `json:"kernel"`
	Passed bool   `json:"passed"`
}

// resultsFile collects the results of a run, one JSON object in a line. It is made in $LAB_OUT.
const resultsFile = "conformance.jsonl"

// Proves says that the test which calls it proves these rows, and records at its end whether it did. It stands first in a test
// function, or in the function literal of a t.Run, with numbers: Claims reads it from the source.
func Proves(t testing.TB, rows ...int) {
	t.Helper()
	for _, n := range rows {
		if n < 1 || n > len(Rows) {
			t.Fatalf("conformance: there is no row %d; want 1 to %d", n, len(Rows))
		}
	}
	dir := os.Getenv("LAB_OUT")
	if dir == "" {
		return
	}
	t.Cleanup(func() {
		if t.Skipped() {
			return
		}
		if err := record(filepath.Join(dir, resultsFile), t, rows); err != nil {
			t.Errorf("conformance: record the result: %v", err)
		}
	})
}

func record(path string, t testing.TB, rows []int) error {
	var results []Result
	for _, n := range rows {
		results = append(results, Result{Row: n, Test: t.Name(), Kernel: release(os.Getenv("LAB_KERNEL")), Passed: !t.Failed()})
	}
	return appendLines(path, results...)
}

// release shortens 6.1.0-56-amd64 to 6.1: patch levels come and go.
func release(kernel string) string {
	parts := strings.SplitN(kernel, ".", 3)
	if len(parts) < 2 {
		return kernel
	}
	minor, _, _ := strings.Cut(parts[1], "-")
	return parts[0] + "." + minor
}
