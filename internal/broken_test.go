package internal

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// Every patch in e2e/broken must apply, because "make broken" uses it to prove that a test catches the defect.
func TestPatchesApply(t *testing.T) {
	patches, err := filepath.Glob("../e2e/broken/*.patch")
	if err != nil || len(patches) == 0 {
		t.Fatalf("no patches: %v", err)
	}
	for _, patch := range patches {
		check := exec.Command("git", "apply", "--check", filepath.Join("internal", patch))
		check.Dir = ".."
		if out, err := check.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", patch, err, out)
		}
	}
}
