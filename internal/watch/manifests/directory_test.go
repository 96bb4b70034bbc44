package manifests

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/watch"
)

func observed(dir string) (*directory, *observer.ObservedLogs) {
	core, logs := observer.New(zap.InfoLevel)
	return newDirectory(dir, watch.NewStore(""), zap.New(core)), logs
}

func mustScan(t *testing.T, d *directory) (changed bool) {
	t.Helper()
	changed, err := d.scan()
	if err != nil {
		t.Fatal(err)
	}
	return changed
}

func TestExtensionsInUpperCase(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "web.YAML"), serviceYAML("web", "10.96.0.1"))
	write(t, filepath.Join(dir, "notes.txt"), "not a manifest")
	d, _ := observed(dir)
	mustScan(t, d)
	if n := len(d.lists()[model.KindService]); n != 1 {
		t.Errorf("%d Services", n)
	}
}

// A file over the size limit is a Problem. The source checks the size without reading the file.
func TestFileOverTheLimit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "huge.yaml")
	write(t, path, "")
	if err := os.Truncate(path, maxManifest+1); err != nil {
		t.Fatal(err)
	}
	cost := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, _, err := readManifest(path); err == nil || !strings.Contains(err.Error(), "smaller than 256 MiB") {
				b.Fatal(err)
			}
		}
	})
	if cost.AllocedBytesPerOp() > 1<<20 {
		t.Errorf("a read allocated %d bytes, so it read the file", cost.AllocedBytesPerOp())
	}
}

func TestManyFilesRemoved(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "stays.yaml"), "# nothing\n")
	for i := range 300 {
		write(t, filepath.Join(dir, fmt.Sprintf("web-%03d.yaml", i)), serviceYAML(fmt.Sprintf("web-%d", i), "None"))
	}
	d, logs := observed(dir)
	mustScan(t, d)
	logs.TakeAll()
	for i := range 300 {
		if err := os.Remove(filepath.Join(dir, fmt.Sprintf("web-%03d.yaml", i))); err != nil {
			t.Fatal(err)
		}
	}
	if d.scanFile("web-000.yaml") {
		t.Error("a file deleted after the directory was listed counts as a change before the next scan")
	}
	if !mustScan(t, d) || len(d.lists()[model.KindService]) != 0 {
		t.Error("Services of deleted files remain")
	}
	if all := logs.All(); len(all) != 1 || all[0].ContextMap()["files"] != int64(300) {
		t.Errorf("logged %d lines, want one that counts 300 files: %v", len(all), all)
	}
}
