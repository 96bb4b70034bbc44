package manifests

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap/zaptest"
	"golang.org/x/tools/txtar"

	"github.com/kube-ipvs/kube-ipvs/internal/goldentest"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/watch/watchtest"
)

const (
	webText = "default/web [10.96.0.10] http=80/tcp\ndefault/web  web-1 IPv4 http=8080/tcp 10.244.1.5+ready+serving"
	apiText = "default/api [10.96.0.10] http=80/tcp"
)

func serviceYAML(name, ip string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec:\n  clusterIP: %s\n  ports: [{name: http, port: 80}]\n", name, ip)
}

func sliceYAML(name, service, addr string) string {
	return fmt.Sprintf("apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: %s, labels: {kubernetes.io/service-name: %s}}\n"+
		"addressType: IPv4\nports: [{name: http, port: 8080}]\nendpoints: [{addresses: [%s]}]\n", name, service, addr)
}

// TestLoad loads each archive in testdata, and compares the model and the Problems with the archive's file "want".
func TestLoad(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatal(paths, err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			archive, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			dir, want := t.TempDir(), ""
			for _, f := range archive.Files {
				if f.Name == "want" {
					want = string(f.Data)
					continue
				}
				write(t, filepath.Join(dir, f.Name), string(f.Data))
			}
			changes, err := Load(dir, "")
			if err != nil {
				t.Fatal(err)
			}
			got := changesText(changes)
			if *goldentest.Update {
				for i := range archive.Files {
					if archive.Files[i].Name == "want" {
						archive.Files[i].Data = []byte(got)
					}
				}
				write(t, path, string(txtar.Format(archive)))
				return
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func changesText(changes model.Changes) string {
	var text strings.Builder
	for _, id := range slices.SortedFunc(maps.Keys(changes.Services), model.ServiceID.Compare) {
		fmt.Fprintln(&text, watchtest.ServiceText(changes.Services[id]))
	}
	for _, name := range slices.Sorted(maps.Keys(changes.Nodes)) {
		fmt.Fprintln(&text, watchtest.NodeText(changes.Nodes[name]))
	}
	for _, object := range slices.SortedFunc(maps.Keys(changes.Problems), model.ObjectRef.Compare) {
		for _, p := range changes.Problems[object] {
			fmt.Fprintln(&text, "!", p)
		}
	}
	return text.String()
}

func TestLoadErrors(t *testing.T) {
	for name, dir := range map[string]string{"missing": filepath.Join(t.TempDir(), "no"), "empty": t.TempDir()} {
		if _, err := Load(dir, ""); err == nil || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

// If poll is never, the source relies on notifications.
func startManifests(t *testing.T, dir string, poll time.Duration) *Source {
	t.Helper()
	m := New(dir, "", zaptest.NewLogger(t))
	m.timing = timing{settle: 20 * time.Millisecond, poll: poll, unfinished: 50 * time.Millisecond, hung: time.Minute}
	watchtest.Run(t, m)
	return m
}

const never = time.Hour

func TestManifestsFollowTheDirectory(t *testing.T) {
	dir := t.TempDir()
	web, extra := filepath.Join(dir, "web.yaml"), filepath.Join(dir, "extra.yaml")
	write(t, web, serviceYAML("web", "10.96.0.10")+"---\n"+sliceYAML("web-1", "web", "10.244.1.5"))
	m, v := startManifests(t, dir, never), watchtest.NewView()
	v.AwaitText(t, m, "start", webText)

	write(t, extra, serviceYAML("api", "10.96.0.10"))
	v.AwaitText(t, m, "file added", apiText+"\n"+webText)

	write(t, web, serviceYAML("web", "10.96.0.10"))
	v.AwaitText(t, m, "object removed", apiText+"\ndefault/web [10.96.0.10] http=80/tcp")

	// An editor renames a new file over the old file.
	write(t, web+".new", serviceYAML("web", "10.96.0.99"))
	rename(t, web+".new", web)
	v.AwaitText(t, m, "replaced", apiText+"\ndefault/web [10.96.0.99] http=80/tcp")

	remove(t, extra)
	v.AwaitText(t, m, "file removed", "default/web [10.96.0.99] http=80/tcp")
}

// A file with a mistake keeps its last good objects, and causes a Problem. Other files are not affected.
func TestManifestsKeepLastGoodObjects(t *testing.T) {
	dir := t.TempDir()
	web, other := filepath.Join(dir, "web.yaml"), filepath.Join(dir, "other.yaml")
	good := serviceYAML("web", "10.96.0.10") + "---\n" + sliceYAML("web-1", "web", "10.244.1.5")
	write(t, web, good)
	m, v := startManifests(t, dir, never), watchtest.NewView()
	v.AwaitText(t, m, "start", webText)
	for name, bad := range map[string]string{
		"not YAML":        "apiVersion: v1\n  kind: [",
		"empty file":      "",
		"unknown field":   strings.Replace(good, "ports:", "portz:", 1),
		"bad address":     strings.Replace(good, "clusterIP: 10.96.0.10", "clusterIP: 10.96.0.300", 1),
		"no address":      strings.Replace(good, "clusterIP: 10.96.0.10", "type: ClusterIP", 1),
		"half written":    good[:len(good)-20],
		"kind misspelled": strings.Replace(good, "kind: Service", "kind: Servise", 1),
		"no name":         strings.Replace(good, "metadata: {name: web}", "metadata: {}", 1),
	} {
		write(t, web, bad)
		v.Await(t, m, name, func() bool { return len(v.Problems) > 0 })
		if got := servicesOf(v); got != webText {
			t.Errorf("%s: the Services changed to\n%s", name, got)
		}
		for _, list := range v.Problems {
			for _, p := range list {
				if !strings.Contains(p.String(), "web.yaml") || !strings.Contains(p.Reason, "last good version") {
					t.Errorf("%s: %v", name, p)
				}
			}
		}
		write(t, other, serviceYAML("api", "10.96.0.10"))
		v.Await(t, m, name+": another file", func() bool { return len(v.Services) == 2 })
		remove(t, other)
		v.Await(t, m, name+": another file removed", func() bool { return len(v.Services) == 1 })
		write(t, web, good)
		v.AwaitText(t, m, name+": corrected", webText)
	}
}

func servicesOf(v *watchtest.View) string { return (&watchtest.View{Services: v.Services}).String() }

// I11: changes in valid documents of a file take effect although another document is invalid.
func TestManifestsFollowValidDocuments(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "all.yaml")
	write(t, file, serviceYAML("api", "10.96.0.10")+"---\n"+serviceYAML("web", "10.96.0.20"))
	m, v := startManifests(t, dir, never), watchtest.NewView()
	v.AwaitText(t, m, "start", apiText+"\ndefault/web [10.96.0.20] http=80/tcp")
	write(t, file, serviceYAML("api", "10.96.0.11")+"---\n"+strings.Replace(serviceYAML("web", "10.96.0.21"), "spec", "spek", 1))
	v.Await(t, m, "one document invalid", func() bool { return len(v.Problems) == 1 })
	if got, want := servicesOf(v), "default/api [10.96.0.11] http=80/tcp\ndefault/web [10.96.0.20] http=80/tcp"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	write(t, filepath.Join(dir, "none.yaml"), "# no Services\n")
	remove(t, file)
	v.AwaitText(t, m, "deleted", "")
}

// A directory that loses its last file looks like an unmounted volume, so all objects stay. A file without objects removes all objects.
func TestManifestsKeepObjectsOfEmptyDirectory(t *testing.T) {
	dir := t.TempDir()
	web, other := filepath.Join(dir, "web.yaml"), filepath.Join(dir, "api.yaml")
	write(t, web, serviceYAML("web", "10.96.0.20"))
	write(t, other, serviceYAML("api", "10.96.0.10"))
	m, v := startManifests(t, dir, never), watchtest.NewView()
	v.AwaitText(t, m, "start", apiText+"\ndefault/web [10.96.0.20] http=80/tcp")

	remove(t, other)
	v.AwaitText(t, m, "one of two removed", "default/web [10.96.0.20] http=80/tcp")
	remove(t, web)
	v.Await(t, m, "last file removed", func() bool { return len(v.Problems[model.FileRef(dir)]) == 1 })
	if got := servicesOf(v); got != "default/web [10.96.0.20] http=80/tcp" {
		t.Errorf("got\n%s", got)
	}
	write(t, filepath.Join(dir, "none.yaml"), "# no Services\n")
	v.AwaitText(t, m, "file without objects", "")
}

// The kubelet updates a mounted ConfigMap by replacing the symlink ..data.
func TestManifestsFollowConfigMap(t *testing.T) {
	dir := t.TempDir()
	version := func(n int, ip string) {
		sub := fmt.Sprintf("..v%d", n)
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, sub, "web.yaml"), serviceYAML("web", ip))
		if err := os.Symlink(sub, filepath.Join(dir, "..data_tmp")); err != nil {
			t.Fatal(err)
		}
		rename(t, filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data"))
	}
	version(1, "10.96.0.1")
	if err := os.Symlink("..data/web.yaml", filepath.Join(dir, "web.yaml")); err != nil {
		t.Fatal(err)
	}
	m, v := startManifests(t, dir, never), watchtest.NewView()
	v.AwaitText(t, m, "start", "default/web [10.96.0.1] http=80/tcp")
	for n := 2; n < 5; n++ {
		version(n, fmt.Sprintf("10.96.0.%d", n))
		v.AwaitText(t, m, "swapped", fmt.Sprintf("default/web [10.96.0.%d] http=80/tcp", n))
	}
	// The volume fails: the directory still lists the file, but the file cannot be read.
	rename(t, filepath.Join(dir, "..data"), filepath.Join(dir, "..gone"))
	v.Await(t, m, "dangling", func() bool { return len(v.Problems[model.FileRef("web.yaml")]) == 1 })
	if got := servicesOf(v); got != "default/web [10.96.0.4] http=80/tcp" {
		t.Errorf("got\n%s", got)
	}
}

// A missing directory removes nothing. Polling finds the directory again once it exists.
func TestManifestsKeepObjectsOfMissingDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "manifests")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "web.yaml"), serviceYAML("web", "10.96.0.10"))
	m, v := startManifests(t, dir, 50*time.Millisecond), watchtest.NewView()
	v.AwaitText(t, m, "start", "default/web [10.96.0.10] http=80/tcp")
	rename(t, dir, dir+".away")
	v.Await(t, m, "directory missing", func() bool { return len(v.Problems[model.FileRef(dir)]) == 1 })
	if got := servicesOf(v); got != "default/web [10.96.0.10] http=80/tcp" {
		t.Errorf("got\n%s", got)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "web.yaml"), serviceYAML("web", "10.96.0.11"))
	v.AwaitText(t, m, "directory exists again", "default/web [10.96.0.11] http=80/tcp")
}

// Until the directory has been read once, the source is not synced, because the directory may contain objects.
func TestManifestsNotSyncedWithoutDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "manifests")
	m, v := startManifests(t, dir, 50*time.Millisecond), watchtest.NewView()
	select {
	case <-m.Changed():
	case <-time.After(watchtest.Deadline):
		t.Fatal("no Problem for the missing directory")
	}
	v.Take(m.Take())
	if len(v.Problems[model.FileRef(dir)]) != 1 || m.Synced() {
		t.Errorf("missing directory: synced %v, problems %v", m.Synced(), v.Problems)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	// A directory without manifests may be a volume that is not mounted yet.
	select {
	case <-m.Changed():
	case <-time.After(watchtest.Deadline):
		t.Fatal("no Problem for the empty directory")
	}
	v.Take(m.Take())
	if len(v.Problems[model.FileRef(dir)]) != 1 || m.Synced() {
		t.Errorf("empty directory: synced %v, problems %v", m.Synced(), v.Problems)
	}
	write(t, filepath.Join(dir, "web.yaml"), serviceYAML("web", "10.96.0.10"))
	v.AwaitText(t, m, "first manifest", "default/web [10.96.0.10] http=80/tcp")
}

// A change is detected even if the size and the modification time stay the same.
func TestManifestsFollowChangeWithinClockTick(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "web.yaml")
	write(t, file, serviceYAML("web", "10.96.0.10"))
	stamp := time.Now()
	if err := os.Chtimes(file, stamp, stamp); err != nil {
		t.Fatal(err)
	}
	m, v := startManifests(t, dir, never), watchtest.NewView()
	v.AwaitText(t, m, "start", "default/web [10.96.0.10] http=80/tcp")
	write(t, file, serviceYAML("web", "10.96.0.11"))
	if err := os.Chtimes(file, stamp, stamp); err != nil {
		t.Fatal(err)
	}
	v.AwaitText(t, m, "changed", "default/web [10.96.0.11] http=80/tcp")
}

// Unusual directory entries do not affect other files.
func TestLoadWithUnusualFiles(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "web.yaml"), serviceYAML("web", "10.96.0.10"))
	write(t, filepath.Join(dir, ".web.yaml.swp"), "x")
	write(t, filepath.Join(dir, ".hidden.yaml"), "x: [")
	write(t, filepath.Join(dir, "README.md"), "x: [")
	mustMkfifo(t, filepath.Join(dir, "fifo.yaml"))
	if err := os.Mkdir(filepath.Join(dir, "dir.yaml"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", filepath.Join(dir, "loose.yaml")); err != nil {
		t.Fatal(err)
	}
	changes, err := Load(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	want := "default/web [10.96.0.10] http=80/tcp\n" +
		"! fifo.yaml: cannot be used: must be a regular file\n" +
		"! loose.yaml: cannot be used: no such file or directory\n"
	if diff := cmp.Diff(want, changesText(changes)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// A read that hangs is a Problem until it ends. No other read starts, and Run does not wait for it.
func TestHungManifests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New("/manifests", "", zaptest.NewLogger(t))
		var reads atomic.Int32
		release := make(chan struct{})
		hang := func() time.Duration {
			reads.Add(1)
			<-release
			return 0
		}
		reported := func() int { return len(m.Take().Problems[model.FileRef("/manifests")]) }
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan bool)
		go func() { ended <- m.follow(ctx, nil, nil, hang) }()
		time.Sleep(m.timing.hung - 1)
		if n := reported(); n != 0 {
			t.Errorf("got %d Problems before the time limit, want none", n)
		}
		time.Sleep(time.Hour)
		if n := reported(); n != 1 || reads.Load() != 1 {
			t.Errorf("got %d Problems and %d reads, want one of each", n, reads.Load())
		}
		release <- struct{}{}
		synctest.Wait()
		if _, changed := m.Take().Problems[model.FileRef("/manifests")]; !changed || reads.Load() != 1 {
			t.Errorf("the Problem is not resolved after %d reads", reads.Load())
		}
		time.Sleep(m.timing.poll)
		if stop(); <-ended {
			t.Error("follow waited for a hung read")
		}
		close(release)
	})
}
