package manifests

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

const testUnfinished = 5 * time.Second

type followed struct {
	*testing.T
	*directory
	file string
}

func follow(t *testing.T, test func(f *followed)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		d, _ := observed(dir)
		d.unfinished = testUnfinished
		test(&followed{t, d, filepath.Join(dir, "all.yaml")})
	})
}

// write replaces the content in place, like a shell redirection.
func (f *followed) write(text string) {
	f.Helper()
	write(f.T, f.file, text)
	mustScan(f.T, f.directory)
}

func (f *followed) extents() map[model.ObjectRef]int {
	all := map[model.ObjectRef]int{}
	for kind, records := range f.lists() {
		for _, r := range records {
			if kind != model.KindFile {
				all[r.Key()] = extent(r)
			}
		}
	}
	return all
}

// A truncated document in YAML's block style is often still valid.
func drawnManifest(random *rand.Rand, services int) string {
	var docs []string
	for i := range services {
		docs = append(docs, serviceYAML(fmt.Sprintf("web-%d", i), fmt.Sprintf("10.96.0.%d", i+1)))
		var slice strings.Builder
		fmt.Fprintf(&slice, "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: web-%d-1\n  labels:\n    kubernetes.io/service-name: web-%d\n"+
			"addressType: IPv4\nports:\n- name: http\n  port: 8080\nendpoints:\n", i, i)
		for range 1 + random.IntN(5) {
			fmt.Fprintf(&slice, "- addresses:\n  - 10.244.%d.%d\n", random.IntN(200), 1+random.IntN(200))
		}
		docs = append(docs, slice.String())
	}
	random.Shuffle(len(docs), func(i, j int) { docs[i], docs[j] = docs[j], docs[i] })
	return strings.Join(docs, "---\n")
}

// TestPausingWriter writes random versions of a file in random pieces, with pauses. An object never loses anything that is in
// both versions. Once the file is complete, its content takes effect.
func TestPausingWriter(t *testing.T) {
	for seed := range uint64(30) {
		follow(t, func(f *followed) {
			random := rand.New(rand.NewPCG(seed, 12))
			old, next := drawnManifest(random, 4), drawnManifest(random, 3+random.IntN(3))
			f.write(old)
			before := f.extents()
			f.write(next)
			time.Sleep(testUnfinished)
			mustScan(t, f.directory)
			after := f.extents()

			f.write(old)
			time.Sleep(testUnfinished)
			mustScan(t, f.directory)
			for _, end := range cuts(random, len(next)) {
				f.write(next[:end])
				for object, extent := range f.extents() {
					if least := min(before[object], after[object]); extent < least {
						t.Fatalf("seed %d: after %d of %d bytes, %s has extent %d, want at least %d:\n%s", seed, end, len(next), object, extent, least, next[:end])
					}
				}
				for object := range before {
					if _, exists := f.extents()[object]; !exists {
						t.Fatalf("seed %d: after %d of %d bytes, %s is missing:\n%s", seed, end, len(next), object, next[:end])
					}
				}
				time.Sleep(testUnfinished * 9 / 10)
			}
			f.write(next)
			time.Sleep(testUnfinished)
			mustScan(t, f.directory)
			if got := f.extents(); fmt.Sprint(got) != fmt.Sprint(after) {
				t.Errorf("seed %d: the complete file has extents %v, want %v", seed, got, after)
			}
		})
	}
}

func cuts(random *rand.Rand, n int) []int {
	ends := []int{0}
	for range 8 {
		ends = append(ends, random.IntN(n))
	}
	slices.Sort(ends)
	return slices.Compact(ends)
}

func TestRemovalInPlace(t *testing.T) {
	follow(t, func(f *followed) {
		f.write(serviceYAML("api", "10.96.0.10") + "---\n" + serviceYAML("web", "10.96.0.20"))
		f.write(serviceYAML("api", "10.96.0.11"))
		if n := len(f.extents()); n != 2 || f.held() != testUnfinished {
			t.Errorf("got %d objects and the next read after %s, want 2 objects and %s", n, f.held(), testUnfinished)
		}
		time.Sleep(testUnfinished)
		if !mustScan(t, f.directory) || len(f.extents()) != 1 || f.held() != 0 {
			t.Errorf("after the delay, got objects %v and the next read after %s, want one object", f.extents(), f.held())
		}
	})
}

// A file renamed over another file is complete, so it takes effect without delay.
func TestRemovalByRename(t *testing.T) {
	follow(t, func(f *followed) {
		f.write(serviceYAML("api", "10.96.0.10") + "---\n" + serviceYAML("web", "10.96.0.20"))
		write(t, f.file+".new", serviceYAML("api", "10.96.0.11"))
		rename(t, f.file+".new", f.file)
		if !mustScan(t, f.directory) || len(f.extents()) != 1 {
			t.Errorf("got objects %v and the next read after %s, want one object", f.extents(), f.held())
		}
	})
}

// If a held version becomes unreadable, the source retries the read at intervals, not continuously.
func TestUnreadableHeldVersion(t *testing.T) {
	follow(t, func(f *followed) {
		f.write(serviceYAML("api", "10.96.0.10") + "---\n" + serviceYAML("web", "10.96.0.20"))
		f.write(serviceYAML("api", "10.96.0.11"))
		dir := filepath.Dir(f.file)
		rename(t, dir, dir+".away")
		time.Sleep(2 * testUnfinished)
		if _, err := f.scan(); err == nil || f.held() < time.Second {
			t.Errorf("got error %v and the next read after %s", err, f.held())
		}
		rename(t, dir+".away", dir)
		if err := os.Chmod(dir, 0o700); err != nil || !mustScan(t, f.directory) || len(f.extents()) != 1 {
			t.Errorf("got error %v and objects %v", err, f.extents())
		}
	})
}
