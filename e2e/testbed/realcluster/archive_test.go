package realcluster

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestArchive(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "bin", "program"), []byte("text"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("program", filepath.Join(root, "bin", "link")); err != nil {
		t.Fatal(err)
	}
	a := archive{names: []string{"example.com/image:v1"}, root: root, entrypoint: []string{"/bin/program"}}
	file := filepath.Join(t.TempDir(), "image.tar")
	first, err := a.write(file)
	if err != nil {
		t.Fatal(err)
	}
	second, err := a.write(file)
	if err != nil || second != first {
		t.Errorf("the same files have digests %s and %s (%v)", first, second, err)
	}
	content, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	var names []string
	for r := tar.NewReader(content); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, filepath.Ext(header.Name))
	}
	if !slices.Equal(names, []string{".tar", ".json", ".json"}) {
		t.Errorf("the archive has %v, want a layer, a configuration and a manifest", names)
	}
}
