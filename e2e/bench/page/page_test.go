package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// The page and its pictures are what the recorded results give.
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
			t.Errorf("docs/%s is not what the results give: run `make bench-page`", name)
		}
	}
}
