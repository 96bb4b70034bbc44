// Package goldentest compares the output of tests with golden files. `make golden` rewrites the files.
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

// Update makes tests write the golden files instead of comparing them.
var Update = flag.Bool("update", false, "rewrite the golden files")

// Compare fails the test if the file differs from the text.
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
		t.Errorf("%s differs (-want +got); run `make golden` to update it:\n%s", file, d)
	}
}
