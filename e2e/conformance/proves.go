package conformance

import (
	"encoding/json"
	"fmt"
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
	var lines strings.Builder
	for _, n := range rows {
		line, err := json.Marshal(Result{Row: n, Test: t.Name(), Kernel: release(os.Getenv("LAB_KERNEL")), Passed: !t.Failed()})
		if err != nil {
			return err
		}
		fmt.Fprintf(&lines, "%s\n", line)
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = file.WriteString(lines.String()) // at once, so that tests in parallel do not mix
	return err
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
