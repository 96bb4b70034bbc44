package internal

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestNoBinaries: every file of the repository is text, except pictures. A compiled program would be in every clone forever.
func TestNoBinaries(t *testing.T) {
	list, err := exec.Command("git", "-C", "..", "ls-files", "-z").Output()
	if err != nil {
		t.Fatal(err)
	}
	paths := strings.Split(strings.TrimSuffix(string(list), "\x00"), "\x00")
	if len(paths) < 100 {
		t.Fatalf("git lists only %d files", len(paths))
	}
	for _, path := range paths {
		text, err := os.ReadFile(filepath.Join("..", path))
		if err != nil {
			t.Fatal(err)
		}
		if bytes.ContainsRune(text, 0) && filepath.Ext(path) != ".png" {
			t.Errorf("%s is not text: remove it from every commit that contains it", path)
		}
	}
}
