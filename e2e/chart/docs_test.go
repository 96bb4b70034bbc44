package chart

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func guide(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docs/install.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// documentedPatch is what docs/install.md tells to give to kube-proxy's DaemonSet.
func documentedPatch(t *testing.T) string {
	t.Helper()
	m := regexp.MustCompile(`patch daemonset kube-proxy --type merge -p '(.*)'`).FindStringSubmatch(guide(t))
	if m == nil {
		t.Fatal("docs/install.md has no patch of kube-proxy's DaemonSet")
	}
	return m[1]
}

func TestGuideAndNotesAgree(t *testing.T) {
	notes := mustRender(t, presets(t, "kubeadm", "take-over")).Info.Notes
	if !strings.Contains(notes, documentedPatch(t)) {
		t.Error("docs/install.md and the chart's NOTES patch kube-proxy in different ways")
	}
}

// TestGuideNamesWhatExists: presets, links, and the text that its sed replaces.
func TestGuideNamesWhatExists(t *testing.T) {
	text := guide(t)
	for _, m := range regexp.MustCompile(`\]\(([^)#]+)\)`).FindAllStringSubmatch(text, -1) {
		if _, err := os.Stat(filepath.Join(root, "docs", m[1])); err != nil {
			t.Errorf("docs/install.md links to %s: %v", m[1], err)
		}
	}
	files, err := filepath.Glob(filepath.Join(chartDir, "presets", "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		if name != "default" && !strings.Contains(text, "`"+name+"`") {
			t.Errorf("docs/install.md does not name the preset %s", name)
		}
	}
	sed := regexp.MustCompile(`sed 's\|(.*?)\|`).FindStringSubmatch(text)
	plain, err := os.ReadFile(filepath.Join(plainDir, "kubeadm.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if sed == nil || strings.Count(string(plain), sed[1]) != 1 {
		t.Errorf("docs/install.md replaces %q in charts/manifests/kubeadm.yaml, where it is not", sed)
	}
}
