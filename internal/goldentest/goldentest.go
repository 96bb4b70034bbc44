// Package goldentest compares what a test got with a file, which `make golden` writes anew.
//
// Only tests import it.
package goldentest

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Update says that files are to be written instead of compared.
var Update = flag.Bool("update", false, "write the golden files anew")

// Compare wants the file to hold the text.
func Compare(t *testing.T, file, got string) {
	t.Helper()
	if *Update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s differs (-want +got); `make golden` writes it anew:\n%s", file, d)
	}
}
