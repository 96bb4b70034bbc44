// Package windows runs the agent for Windows, and the unit tests of its data plane, under Debian's Wine.
package windows

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/debian"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/upstream"
	"github.com/kube-ipvs/kube-ipvs/internal/freeport"
	"github.com/kube-ipvs/kube-ipvs/internal/userspace/shop"
)

const patience = time.Minute

// wine is a directory that programs under Wine see as /work.
type wine struct{ root, work string }

func newWine(t *testing.T) wine {
	t.Helper()
	if os.Getenv("KUBE_IPVS_E2E") == "" {
		t.Skip("make windows-test runs this test")
	}
	root, err := upstream.Root()
	if err != nil {
		t.Fatal(err)
	}
	tree, err := debian.Wine(root)
	if err != nil {
		t.Fatal(err)
	}
	return wine{tree, t.TempDir()}
}

// build builds a program for Windows in the directory.
func (w wine) build(t *testing.T, name, pkg string, how ...string) {
	t.Helper()
	c := exec.Command("go", append(how, "-overlay", w.overlay(t), "-o", filepath.Join(w.work, name), "github.com/kube-ipvs/kube-ipvs/"+pkg)...)
	c.Env = append(os.Environ(), "GOOS=windows", "GOARCH=amd64", "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
}

// overlay returns a file that makes go build use a changed copy of a file of Go's standard library. It ignores that Wine lacks a control
// code (SIO_UDP_NETRESET), which Go uses for each UDP socket.
func (w wine) overlay(t *testing.T) string {
	t.Helper()
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	original, changed := filepath.Join(strings.TrimSpace(string(root)), "src/net/fd_windows.go"), filepath.Join(w.work, "fd_windows.go")
	text, err := os.ReadFile(original)
	if err != nil {
		t.Fatal(err)
	}
	before, after, found := strings.Cut(string(text), "windows.SIO_UDP_NETRESET")
	if after = strings.Replace(after, "if err != nil {", "if false {", 1); !found {
		t.Fatalf("%s does not use the control code", original)
	}
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{original: changed}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(w.work, "overlay.json")
	for path, content := range map[string][]byte{changed: []byte(before + "windows.SIO_UDP_NETRESET" + after), file: replace} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return file
}

// command runs a program of the directory. Everything that it starts ends with it.
func (w wine) command(t *testing.T, name string, args ...string) *exec.Cmd {
	const script = `mount -t proc proc "$1/proc"; mount --rbind /dev "$1/dev"; mount --bind "$2" "$1/work"; shift 2; exec "$@"`
	c := exec.CommandContext(t.Context(), "unshare", append([]string{"--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", script, "sh", w.root, w.work,
		"chroot", w.root, "/usr/bin/env", "-i", "HOME=/work", "WINEPREFIX=/work/wine", "WINEDEBUG=-all", "/usr/lib/wine/wine64", "/work/" + name}, args...)...)
	c.WaitDelay = patience
	return c
}

// withoutWine lists the tests that cannot pass in Wine: it has no functions that add addresses, and Go programs do not
// notice on Windows that an endpoint refuses datagrams.
var withoutWine = map[string][]string{
	"forward":   {"TestDeadUDPEndpoints"},
	"iphelper":  {"TestAddAndRemove"},
	"userspace": nil,
}

// TestUnits: all other unit tests of the data plane pass.
func TestUnits(t *testing.T) {
	for name, without := range withoutWine {
		t.Run(name, func(t *testing.T) {
			w := newWine(t)
			w.build(t, name+".exe", "internal/"+name, "test", "-c")
			// The tests must be the first program in a new directory: only then does Wine start its network service.
			out, err := w.command(t, name+".exe", "-test.v", "-test.timeout=2m", "-test.run=^Test", "-test.skip=^("+strings.Join(without, "|")+")$").CombinedOutput()
			if err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			listed, err := w.command(t, name+".exe", "-test.list=^Test").Output()
			all := strings.Fields(string(listed))
			if err != nil || len(all) == 0 {
				t.Fatalf("tests %q, %v", all, err)
			}
			for _, test := range all {
				if passed := strings.Contains(string(out), "--- PASS: "+test+" ("); passed == slices.Contains(without, test) {
					t.Errorf("%s passed: %t\n%s", test, passed, out)
				}
			}
			for _, test := range without {
				if !slices.Contains(all, test) {
					t.Errorf("there is no %s", test)
				}
			}
		})
	}
}

// TestRun: the agent serves a Service of manifests at its node port. Without --data-plane=userspace, it says what to use.
func TestRun(t *testing.T) {
	w := newWine(t)
	w.build(t, "kube-ipvs.exe", "cmd/kube-ipvs", "build")
	if out, err := w.command(t, "kube-ipvs.exe", "version").CombinedOutput(); err != nil || !strings.Contains(string(out), "windows/amd64") {
		t.Fatalf("version: %v\n%s", err, out)
	}
	out, err := w.command(t, "kube-ipvs.exe", "run", "--manifests", "/work/manifests").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "use --data-plane=userspace") {
		t.Errorf("run without a data plane: %v\n%s", err, out)
	}
	dir, port := filepath.Join(w.work, "manifests"), freeport.Get(t)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	shop.Write(t, dir, port, shop.Endpoint(t, "web"), "")
	agent := w.command(t, "kube-ipvs.exe", "run", "--data-plane", "userspace", "--manifests", "/work/manifests", "-o", "json")
	stdout, err := agent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = agent.Process.Kill(); _ = agent.Wait() }()
	http := shop.Ports(t, json.NewDecoder(stdout))["http"]
	if http.Address.Port() != port {
		t.Fatalf("port %+v, want %d", http, port)
	}
	if got := shop.Answer(t, http); got != "web" {
		t.Errorf("%s answers", got)
	}
}
