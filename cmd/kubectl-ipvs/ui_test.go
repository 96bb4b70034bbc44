package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestUI: the command prints a link. The page lists the nodes, and shows the reason if it cannot reach one.
func TestUI(t *testing.T) {
	out, printed := io.Pipe()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	config := kubeconfigOf(t, func() corev1.PodPhase { return corev1.PodPending })
	go func() {
		ended <- execute(ctx, []string{"ui", "--kubeconfig", config, "--context", "test", "--agent-namespace", "agents"}, printed, io.Discard)
		printed.Close()
	}()
	text := make([]byte, 4096)
	n, err := out.Read(text)
	if err != nil {
		t.Fatal(err)
	}
	link := regexp.MustCompile(`http://127\.0\.0\.1:\d+/\?token=\w+`).FindString(string(text[:n]))
	response, err := http.Get(link)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatal(response, err)
	}
	response.Body.Close()
	page := response.Request.URL.String()
	for path, want := range map[string]string{
		"api/nodes":                `{"nodes":["node-1"]}`,
		"api/overview?node=node-1": "agent-1 is not running (Pending)",
	} {
		response, err := http.Get(page + path)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(response.Body)
		response.Body.Close()
		if !strings.Contains(string(body), want) || !json.Valid(body) {
			t.Errorf("%s: %s, want %s", path, body, want)
		}
	}
	stop()
	if status := <-ended; status != 0 {
		t.Errorf("exit status %d after an interrupt", status)
	}
	if _, stderr, status := call(t, "ui", "shop/web"); status != 2 || !strings.Contains(stderr, "shop/web") {
		t.Errorf("an argument: %d %s", status, stderr)
	}
}
