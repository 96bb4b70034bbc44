package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// TestPageIsCurrent checks that the page and its pictures match the recorded results.
func TestPageIsCurrent(t *testing.T) {
	docs := "../../../docs"
	files, err := generate("../results", docs)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		have, err := os.ReadFile(filepath.Join(docs, name))
		if err != nil {
			t.Error(err)
		} else if !bytes.Equal(have, want) {
			t.Errorf("docs/%s does not match the results; use `make bench-page`", name)
		}
	}
}
