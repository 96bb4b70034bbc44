package main

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-ipvs/kube-ipvs/internal/clidocs"
)

func call(t *testing.T, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	var out, err strings.Builder
	status = execute(t.Context(), args, &out, &err)
	return out.String(), err.String(), status
}

// kubeconfig returns a kubeconfig for an API server with one agent that is not running.
func kubeconfig(t *testing.T) string {
	t.Helper()
	return kubeconfigOf(t, func() corev1.PodPhase { return corev1.PodPending })
}

// kubeconfigOf returns a kubeconfig for an API server with one agent, whose pod is in the given phase.
func kubeconfigOf(t *testing.T, phase func() corev1.PodPhase) string {
	t.Helper()
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/namespaces/agents/pods" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: []corev1.Pod{{
			ObjectMeta: metav1.ObjectMeta{Name: "agent-1"},
			Spec:       corev1.PodSpec{NodeName: "node-1", Containers: []corev1.Container{{Name: "kube-ipvs"}}},
			Status:     corev1.PodStatus{Phase: phase()},
		}}})
	}))
	t.Cleanup(api.Close)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := `{apiVersion: v1, kind: Config, current-context: none, clusters: [{name: test, cluster: {server: "` + api.URL + `"}}],
		contexts: [{name: test, context: {cluster: test, namespace: shop}}]}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestKubectlFlags: kubectl's flags select the cluster. If a node does not respond, the command prints a line for it
// and fails.
func TestKubectlFlags(t *testing.T) {
	args := []string{"status", "--kubeconfig", kubeconfig(t), "--context", "test", "--agent-namespace", "agents"}
	out, stderr, status := call(t, args...)
	if status != 1 || stderr != "" || !strings.Contains(out, "! node-1: the agent's pod agent-1 is not running (Pending)\n0 of 1 nodes responded\n") {
		t.Errorf("status %d, %q\n%s", status, stderr, out)
	}
	out, _, status = call(t, append(args, "-o", "json")...)
	if status != 1 || !json.Valid([]byte(out)) || !strings.Contains(out, `"kind": "FleetReport"`) {
		t.Errorf("status %d\n%s", status, out)
	}
	if out, _, _ = call(t, append(args, "-o", "yaml")...); !strings.Contains(out, "kind: FleetReport\n") {
		t.Error(out)
	}
	if _, stderr, status = call(t, "status", "--kubeconfig", args[2], "--context", "test"); status != 1 || !strings.Contains(stderr, "namespace kube-system") {
		t.Errorf("other namespace: status %d, %q", status, stderr)
	}
}

// TestWatch: the command repeats its query, prints what has changed, and returns the usual exit status when it is
// interrupted.
func TestWatch(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	rounds := 0
	config := kubeconfigOf(t, func() corev1.PodPhase {
		switch rounds++; {
		case rounds == 1:
			return corev1.PodPending
		case rounds > 2:
			cancel()
		}
		return corev1.PodFailed
	})
	const want = "EVENT      AGENT   VERSION   NODES\n! node-1: the agent's pod agent-1 is not running (Pending)\n0 of 1 nodes responded\n" +
		"no longer: node-1: the agent's pod agent-1 is not running (Pending)\n! node-1: the agent's pod agent-1 is not running (Failed)\n"
	var out, stderr strings.Builder
	args := []string{"status", "-w", "--watch-interval=1s", "--kubeconfig", config, "--context", "test", "--agent-namespace", "agents"}
	if status := execute(ctx, args, &out, &stderr); status != 1 || out.String() != want || stderr.String() != "" {
		t.Errorf("status %d, %q\n%s\nwant\n%s", status, &stderr, &out, want)
	}
}

func TestCommandLines(t *testing.T) {
	config := kubeconfig(t)
	for line, want := range map[string]string{
		"services -o xml":                "table, wide, json, yaml, name",
		"status --sort-by nope":          "use one of agent, version, nodes",
		"status -w --watch-interval 1ms": "at least 1s",
		"status --node-timeout 0s":       "must be positive",
		"services web -A":                "use -n NAMESPACE",
		"services --node a --all-nodes":  "either --node or --all-nodes",
		"explain":                        "name a Service",
		"conns a b":                      "accepts at most 1 arg",
		"doctor web":                     "takes no Service",
		"status --nope":                  "unknown flag",
		"preflight --agent-flag x":       "need --image",
		"preflight --compare":            "--compare needs --image",
		"preflight --image x -w":         "without --image",
		"cleanup --dry-run":              "needs --image",
		"cleanup --image x":              "--all-nodes or --dry-run",
	} {
		out, stderr, status := call(t, append(strings.Fields(line), "--context", "test", "--kubeconfig", config)...)
		if status != 2 || out != "" || !strings.Contains(stderr, want) {
			t.Errorf("%s: status %d, %q %q; want %q", line, status, out, stderr, want)
		}
	}
	if out, _, status := call(t, "--help"); status != 0 || !strings.Contains(out, "kubectl ipvs explain") && !strings.Contains(out, "explain ") {
		t.Errorf("status %d\n%s", status, out)
	}
}

// TestPageNamesCommands: every kubectl ipvs command line and flag in docs/kubectl.md exists.
func TestPageNamesCommands(t *testing.T) {
	page, err := os.ReadFile("../../docs/kubectl.md")
	if err != nil {
		t.Fatal(err)
	}
	root := newRoot()
	for _, mistake := range clidocs.Mistakes(root, string(page)) {
		t.Error(mistake)
	}
	for _, line := range clidocs.CodeLines(string(page)) {
		flag, _, _ := strings.Cut(line, " ")
		if len(flag) > 1 && flag[0] == '-' && !slices.ContainsFunc(root.Commands(), func(c *cobra.Command) bool { return clidocs.HasFlag(c, flag) }) {
			t.Errorf("no flag %s", flag)
		}
	}
}

// TestWatchTop: top prints its table again each time, because every number changes.
func TestWatchTop(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	asked := 0
	config := kubeconfigOf(t, func() corev1.PodPhase {
		if asked++; asked == 3 {
			stop()
		}
		return corev1.PodPending
	})
	var out, stderr strings.Builder
	args := []string{"top", "--kubeconfig", config, "--context", "test", "--agent-namespace", "agents", "-w", "--watch-interval", "1s"}
	if status := execute(ctx, args, &out, &stderr); status != 1 || strings.Count(out.String(), "NAMESPACE") != 2 {
		t.Errorf("status %d, %q\n%s", status, stderr.String(), out.String())
	}
}
