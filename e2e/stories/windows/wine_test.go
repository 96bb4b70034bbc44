// Package windows runs the agent for Windows, and the unit tests of its data plane, under Debian's Wine.
package windows

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/debian"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/upstream"
	"github.com/kube-ipvs/kube-ipvs/internal/freeport"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
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
	c := exec.Command("go", append(how, "-o", filepath.Join(w.work, name), "github.com/kube-ipvs/kube-ipvs/"+pkg)...)
	c.Env = append(os.Environ(), "GOOS=windows", "GOARCH=amd64", "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
}

// command runs a program of the directory. Everything that it starts ends with it.
func (w wine) command(t *testing.T, name string, args ...string) *exec.Cmd {
	const script = `mount -t proc proc "$1/proc"; mount --rbind /dev "$1/dev"; mount --bind "$2" "$1/work"; shift 2; exec "$@"`
	c := exec.CommandContext(t.Context(), "unshare", append([]string{"--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", script, "sh", w.root, w.work,
		"chroot", w.root, "/usr/bin/env", "-i", "HOME=/work", "WINEPREFIX=/work/wine", "WINEDEBUG=-all", "/usr/lib/wine/wine64", "/work/" + name}, args...)...)
	c.WaitDelay = patience
	return c
}

// TestUnits: the unit tests of the data plane pass, except those with UDP: Wine lacks a control code (SIO_UDP_NETRESET) that Go
// uses for each UDP socket.
func TestUnits(t *testing.T) {
	w := newWine(t)
	for name, skip := range map[string]string{
		"forward":   "UDP|Flows|Concurrent",
		"userspace": "^$",
	} {
		t.Run(name, func(t *testing.T) {
			w.build(t, name+".exe", "internal/"+name, "test", "-c")
			out, err := w.command(t, name+".exe", "-test.v", "-test.timeout=2m", "-test.skip="+skip).CombinedOutput()
			if passed := strings.Count(string(out), "--- PASS"); err != nil || passed < 5 {
				t.Errorf("%d passed, %v\n%s", passed, err, out)
			}
		})
	}
}

const manifest = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  type: NodePort
  clusterIP: 10.96.0.10
  ports: [{name: http, port: 80, nodePort: %d}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: %d}]
endpoints: [{addresses: [127.0.0.1]}]
`

// write writes the manifest that the agent serves.
func (w wine) write(t *testing.T, text string) {
	t.Helper()
	dir := filepath.Join(w.work, "manifests")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "shop.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
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
	endpoint, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = endpoint.Close() }()
	go greet(endpoint)
	port := freeport.Get(t)
	w.write(t, fmt.Sprintf(manifest, port, endpoint.Addr().(*net.TCPAddr).Port))
	agent := w.command(t, "kube-ipvs.exe", "run", "--data-plane", "userspace", "--manifests", "/work/manifests", "-o", "json")
	stdout, err := agent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = agent.Process.Kill(); _ = agent.Wait() }()
	var document struct{ Items []view.ForwardedPort }
	if err := json.NewDecoder(stdout).Decode(&document); err != nil || len(document.Items) != 1 || document.Items[0].Address.Port() != port {
		t.Fatalf("%v, ports %+v", err, document.Items)
	}
	c, err := net.DialTimeout("tcp", document.Items[0].Address.String(), patience)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(patience))
	if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || line != "web\n" {
		t.Errorf("the endpoint's answer: %q, %v", line, err)
	}
}

func greet(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = fmt.Fprintln(c, "web")
		_ = c.Close()
	}
}
