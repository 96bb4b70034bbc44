package upstream

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cachedir"
)

// greeter is a release small enough to build in a test.
var greeter = release{
	folder:   "greeter",
	module:   "example.com/greeter",
	stamp:    []string{"example.com/greeter.version"},
	programs: []program{{"greet", "example.com/greeter/cmd"}},
}

// checkout creates a checkout that can be built without a network.
func checkout(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	t.Setenv(cachedir.Variable, filepath.Join(root, ".cache"))
	files := map[string]string{
		"go.mod":             "module example.com/pins\n\ngo 1.26\n\nrequire example.com/greeter v1.2.3\n\nreplace example.com/greeter => ./greeter\n",
		"go.sum":             "",
		"greeter/go.mod":     "module example.com/greeter\n\ngo 1.26\n",
		"greeter/greet.go":   "package greeter\n\nvar version = \"none\"\n\nfunc Version() string { return version }\n",
		"greeter/cmd/cmd.go": "package main\n\nimport \"example.com/greeter\"\n\nfunc main() { println(greeter.Version()) }\n",
	}
	for name, content := range files {
		write(t, filepath.Join(greeter.source(root), name), content)
	}
	return root
}

func write(t *testing.T, file, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestSets: every set includes the control plane. Only measurements need the proxies of other projects.
func TestSets(t *testing.T) {
	for set, want := range map[Set]map[string]bool{
		ControlPlane:    {KubeAPIServer: true, Kubelet: false, E2ETest: false, KubeRouter: false},
		Cluster:         {KubeAPIServer: true, Kubelet: true, E2ETest: false, KubeRouter: false},
		KubernetesTests: {KubeAPIServer: true, Kubelet: true, E2ETest: true, KubeRouter: false},
		Peers:           {KubeAPIServer: true, Kubelet: false, E2ETest: false, KubeRouter: true},
	} {
		for name, included := range want {
			has := slices.ContainsFunc(wanted(set), func(r release) bool {
				return slices.ContainsFunc(r.programs, func(p program) bool { return p.name == name })
			})
			if has != included {
				t.Errorf("%q includes %s: %t", set.command(), name, has)
			}
		}
	}
}

func TestBuildStampsVersion(t *testing.T) {
	root := checkout(t)
	if err := build(t.Context(), root, []release{greeter}, os.Stderr); err != nil {
		t.Fatal(err)
	}
	pin, err := greeter.pin(root)
	if err != nil {
		t.Fatal(err)
	}
	said, err := exec.Command(filepath.Join(pin.dir, "greet")).CombinedOutput()
	if err != nil || string(said) != "v1.2.3\n" {
		t.Errorf("the program prints %q (%v), want its version", said, err)
	}
}

func TestConcurrentBuildsCompileOnce(t *testing.T) {
	root := checkout(t)
	var outputs [3]bytes.Buffer
	var builds sync.WaitGroup
	for i := range outputs {
		builds.Go(func() {
			if err := build(t.Context(), root, []release{greeter}, &outputs[i]); err != nil {
				t.Error(err)
			}
		})
	}
	builds.Wait()
	var all string
	for i := range outputs {
		all += outputs[i].String()
	}
	if n := strings.Count(all, "compiling"); n != 1 {
		t.Errorf("%d compilations, want 1:\n%s", n, all)
	}
}

func TestChangedPinsAreNotBuilt(t *testing.T) {
	root := checkout(t)
	before, err := greeter.pin(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"go.mod", "go.sum"} {
		file := filepath.Join(greeter.source(root), name)
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		write(t, file, string(content)+"\n// changed\n")
		after, err := greeter.pin(root)
		if err != nil {
			t.Fatal(err)
		}
		if after.version != "v1.2.3" || after.dir == before.dir {
			t.Errorf("after a change to %s, the pin is %+v; want a directory other than %s", name, after, before.dir)
		}
		before = after
	}
}

func TestFailedBuildPublishesNothing(t *testing.T) {
	root := checkout(t)
	source := filepath.Join(greeter.source(root), "greeter/cmd/cmd.go")
	write(t, source, "package main\n\nfunc main() { undefined() }\n")
	var out bytes.Buffer
	err := build(t.Context(), root, []release{greeter}, &out)
	if err == nil || !strings.Contains(err.Error(), "build greet v1.2.3") || !strings.Contains(out.String(), "undefined: undefined") {
		t.Errorf("got error %v and output %q, want the program's name and the compiler's message", err, &out)
	}
	pin, err := greeter.pin(root)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(pin.dir); err == nil {
		t.Errorf("%s exists after a failed build", pin.dir)
	}

	write(t, source, "package main\n\nfunc main() {}\n")
	if err := build(t.Context(), root, []release{greeter}, &out); err != nil {
		t.Errorf("the build still fails after the source was repaired: %v", err)
	}
}

func TestPathNamesTheCommandThatBuilds(t *testing.T) {
	here, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	t.Setenv(cachedir.Variable, filepath.Join(root, ".cache"))
	if err := os.CopyFS(filepath.Join(root, "e2e", "testbed", "upstream"), os.DirFS(filepath.Join(here, "e2e", "testbed", "upstream"))); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{Etcd, KubeAPIServer, KubeProxy, Kubelet, CoreDNS, E2ETest} {
		if _, err := Path(root, name); !errors.Is(err, ErrNotBuilt) || !strings.Contains(err.Error(), BuildCommand) {
			t.Errorf("%s: got error %v, want %v and the build command", name, err, ErrNotBuilt)
		}
	}
	if _, err := Path(root, "kubeadm"); err == nil || errors.Is(err, ErrNotBuilt) {
		t.Errorf("kubeadm: got error %v, want an error that says no module pins it", err)
	}
}

func TestRootOutsideCheckout(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv(RootVariable, "")
	if _, err := Root(); err == nil || !strings.Contains(err.Error(), RootVariable) {
		t.Errorf("got error %v, want an error that names %s", err, RootVariable)
	}
	t.Setenv(RootVariable, "/somewhere")
	if root, err := Root(); err != nil || root != "/somewhere" {
		t.Errorf("got root %q, %v; want the variable's value", root, err)
	}
}

func TestOneReleaseOfKubernetes(t *testing.T) {
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	versions := map[string]string{}
	for _, name := range []string{KubeAPIServer, Kubelet, E2ETest} {
		if versions[name], err = Version(root, name); err != nil {
			t.Fatal(err)
		}
	}
	if versions[Kubelet] != versions[KubeAPIServer] || versions[E2ETest] != versions[KubeAPIServer] {
		t.Errorf("the modules kubernetes and node pin different releases: %v", versions)
	}
}
