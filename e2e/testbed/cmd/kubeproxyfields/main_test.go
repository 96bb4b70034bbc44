package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestNoVersions: without versions, the command must not empty its file.
func TestNoVersions(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("kept"), 0o644); err != nil {
		t.Fatal(err)
	}
	err := record(nil)
	if content, failed := os.ReadFile(file); err == nil || failed != nil || string(content) != "kept" {
		t.Errorf("error %v; the file contains %q (%v)", err, content, failed)
	}
}
