//go:build linux

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/bundle"
	"github.com/kube-ipvs/kube-ipvs/internal/doctor"
	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/machine"
)

func filesOf(t *testing.T, archive []byte) map[string]string {
	t.Helper()
	uncompressed, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for r := tar.NewReader(uncompressed); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimPrefix(h.Name, "kube-ipvs-bundle/")] = string(text)
	}
}

func bundled(t *testing.T, s *stage, args ...string) (map[string]string, bundle.Manifest) {
	t.Helper()
	out, stderr, status := s.inspect(t, append([]string{"bundle", "-"}, args...)...)
	if status != 0 || stderr != "" {
		t.Fatalf("status %d, %s", status, stderr)
	}
	files := filesOf(t, []byte(out))
	var index bundle.Manifest
	if err := json.Unmarshal([]byte(files["manifest.json"]), &index); err != nil {
		t.Fatal(err)
	}
	if len(files) != len(index.Files)+1 {
		t.Errorf("%d files, %d in the index", len(files), len(index.Files))
	}
	for _, f := range index.Files {
		if text, exists := files[f.File]; !exists || len(text) != f.Bytes || f.Command == "" {
			t.Errorf("the index has %+v; exists: %t, %d bytes", f, exists, len(text))
		}
	}
	return files, index
}

func TestBundle(t *testing.T) {
	s := newStage(t)
	files, index := bundled(t, s)
	if index.Node != "node-1" || index.Kind != "Bundle" {
		t.Errorf("index: %+v", index)
	}
	for file, want := range map[string]string{
		"agent/version.json": `"kind": "Version"`, "agent/status.txt": "node-1", "agent/status.json": `"kind": "Status"`, "agent/services.txt": "10.96.0.10:80/tcp",
		"agent/history.txt": "repaired: virtual server", "agent/history.json": `"kind": "HistoryList"`, "agent/config.yaml": "syncPeriod", "agent/metrics.txt": "kube_ipvs_services 2",
		"node/doctor.txt": "verdict:", "node/preflight.txt": "nothing is missing", "node/kernel.txt": "6.1.0-1-amd64", "node/modules.txt": "ip_vs_rr 1",
		"node/sysctls.txt": "net/ipv4/ip_forward = ", "node/addresses.txt": "ip addr 10.96.0.10/32 dev kube-ipvs0", "kernel/sets.txt": "add KIPVS-4-CLUSTER-IP 10.96.0.10,tcp:80",
		"kernel/rules.txt": "IPv4 -t nat -A PREROUTING", "kernel/connections.txt": "TCP ESTABLISHED: 1",
	} {
		if !strings.Contains(files[file], want) {
			t.Errorf("%s lacks %q:\n%s", file, want, files[file])
		}
	}
	for _, f := range index.Files {
		if f.File == "node/agent.log" && f.Error != "no journal here" {
			t.Errorf("the failure is not in the index: %+v", f)
		}
	}
}

// TestBundleWithoutAgent: the kernel's part is complete, and the index explains why the agent's part is missing.
func TestBundleWithoutAgent(t *testing.T) {
	s := newStage(t)
	s.socket = filepath.Join(t.TempDir(), "no-agent.sock")
	files, index := bundled(t, s)
	if !strings.Contains(files["kernel/sets.txt"], "10.96.0.10,tcp:80") || !strings.Contains(files["agent/status.txt"], "no kube-ipvs agent responds") {
		t.Errorf("%s\n%s", files["kernel/sets.txt"], files["agent/status.txt"])
	}
	for _, f := range index.Files {
		if f.File == "agent/history.json" && (f.ExitStatus != 1 || !strings.Contains(f.Error, "no kube-ipvs agent responds")) {
			t.Errorf("%+v", f)
		}
	}
}

// planted contains secrets, keyed by the place where a test puts them.
type planted map[string]string

func (p planted) at(place string) string {
	p[place] = "s3cr3t-0f-" + strings.ReplaceAll(place, " ", "-")
	return p[place]
}

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
	return path
}

// token looks like the token of a ServiceAccount.
const token = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlIn0.c2lnbmF0dXJlLW9mLWEtdG9rZW4"

// secretStage returns a stage with secrets in everything that a bundle reads, and two configurations. Only the
// valid configuration names the kubeconfig.
func secretStage(t *testing.T, secrets planted) (s *stage, valid, invalid string) {
	t.Helper()
	dir := t.TempDir()
	shop, err := os.ReadFile("testdata/inspect/shop.yaml")
	if err != nil {
		t.Fatal(err)
	}
	const annotations = "annotations: {"
	with := "labels: {note: " + secrets.at("label") + "}, " + annotations + "example.com/note: " + secrets.at("annotation") + ", kube-ipvs.io/password: " +
		secrets.at("unknown annotation") + ", "
	write(t, filepath.Join(dir, "manifests", "shop.yaml"), strings.Replace(string(shop), annotations, with, 1))

	const format = "apiVersion: config.kube-ipvs.io/v1alpha1\nkind: Configuration\n"
	kubeconfig := filepath.Join(dir, "kubeconfig")
	valid = write(t, filepath.Join(dir, "valid.yaml"), format+"# "+secrets.at("comment")+"\nclientConnection: {kubeconfig: "+kubeconfig+"}\n")
	invalid = write(t, filepath.Join(dir, "invalid.yaml"), format+"token: "+secrets.at("unknown setting")+"\nipvs: {password: "+secrets.at("nested setting")+"}\n")
	t.Setenv("KUBE_TOKEN", secrets.at("environment"))
	t.Setenv("HTTPS_PROXY", "http://user:"+secrets.at("proxy")+"@127.0.0.1:1")

	secrets["ServiceAccount"], secrets["key"] = token, "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC"
	host := healthyHost(t)
	host["/var/run/secrets/kubernetes.io/serviceaccount/token"] = token
	host[kubeconfig] = "current-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\nclusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]\n" +
		"users:\n- name: u\n  user:\n    token: " + secrets.at("kubeconfig token") + "\n    password: " + secrets.at("kubeconfig password") +
		"\n    client-key-data: " + secrets.at("kubeconfig key") + "\n"
	message := "[1.0] IPVS: Authorization: Bearer " + secrets.at("kernel log") + "\n"
	s = newStageOf(t, filepath.Join(dir, "manifests"))
	s.Host = func(context.Context) doctor.Host { return loggingHost{host, message} }
	metrics := `build_info{url="https://admin:` + secrets.at("metrics") + `@127.0.0.1"} 1`
	s.Metrics = func(context.Context, string) (int, string, error) { return http.StatusOK, metrics, nil }
	foreign := kernel.SavedRule{Spec: "-m comment --comment " + secrets.at("foreign rule") + " -j DROP"}
	read := s.Kernel
	s.Kernel = func(ctx context.Context, at machine.Look) *explain.Kernel {
		k := read(ctx, at)
		for _, rules := range k.Rules {
			for chain, list := range rules.Rules {
				if foreign.ChainID = chain; chain.Chain == "INPUT" {
					rules.Rules[chain] = append(list, foreign)
				}
			}
		}
		return k
	}
	return s, valid, invalid
}

// TestBundleHasNoSecrets searches the whole archive for every planted secret.
func TestBundleHasNoSecrets(t *testing.T) {
	secrets := planted{}
	s, valid, invalid := secretStage(t, secrets)
	known := secrets["kubeconfig token"] // the log contains only its value
	inLog := "request failed, Authorization: Basic " + secrets.at("agent log") + " with %s, " + token +
		"\n-----BEGIN PRIVATE KEY-----\n" + secrets["key"] + "\n-----END PRIVATE KEY-----\npassword=" + secrets.at("logged password") + "\n"
	for _, file := range []string{valid, invalid} {
		s.AgentLog = func(_ context.Context, w io.Writer) error {
			_, err := fmt.Fprintf(w, inLog, known)
			return err
		}
		files, _ := bundled(t, s, "--config", file)
		known = ""
		for name, text := range files {
			for place, value := range secrets {
				if strings.Contains(text, value) {
					t.Errorf("with %s, %s contains the secret from: %s\n%s", file, name, place, text)
				}
			}
		}
		if !strings.Contains(files["node/agent.log"], "request failed, Authorization: Basic REDACTED with ") || !strings.Contains(files["node/kernel.log"], "IPVS: ") {
			t.Errorf("the logs are missing:\n%s%s", files["node/agent.log"], files["node/kernel.log"])
		}
		if !strings.Contains(files["agent/services.txt"], "10.96.0.10:80/tcp") {
			t.Errorf("the Service with secrets is missing:\n%s", files["agent/services.txt"])
		}
	}
}

type loggingHost struct {
	fakeHost
	log string
}

func (h loggingHost) KernelLog() (string, error) { return h.log, nil }

// TestBundleFile: only the owner can read the file, it never replaces an existing file, and the command prints its name.
func TestBundleFile(t *testing.T) {
	s := newStage(t)
	path := filepath.Join(t.TempDir(), "b.tar.gz")
	out, stderr, status := s.inspect(t, "bundle", path)
	info, err := os.Stat(path)
	if status != 0 || stderr != "" || !strings.HasPrefix(out, path+": ") || err != nil || info.Mode() != 0o600 {
		t.Fatalf("status %d, %s%s, %v", status, out, stderr, err)
	}
	if _, stderr, status := s.inspect(t, "bundle", path); status != 1 || !strings.Contains(stderr, "--force") {
		t.Errorf("an existing file: status %d, %s", status, stderr)
	}
	if _, stderr, status := s.inspect(t, "bundle", path, "--force"); status != 0 {
		t.Errorf("with --force: status %d, %s", status, stderr)
	}
	t.Chdir(t.TempDir())
	if out, stderr, status := s.inspect(t, "bundle"); status != 0 || !strings.HasPrefix(out, "kube-ipvs-bundle-node-1-2") {
		t.Errorf("without a name: status %d, %s%s", status, out, stderr)
	}
	if _, stderr, status := s.inspect(t, "bundle", "a", "b"); status != 2 {
		t.Errorf("two names: status %d, %s", status, stderr)
	}
}
