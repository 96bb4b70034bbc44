package chart

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-ipvs/kube-ipvs/e2e/stories/guides"
)

func guide(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docs", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func documentedPatch(t *testing.T, kind types.PatchType) string {
	t.Helper()
	name := map[types.PatchType]string{types.MergePatchType: "merge", types.JSONPatchType: "json"}[kind]
	m := regexp.MustCompile(`patch daemonset kube-proxy --type ` + name + ` -p '(.*)'`).FindStringSubmatch(guide(t, "replace-kube-proxy.md"))
	if m == nil {
		t.Fatalf("docs/replace-kube-proxy.md has no %s patch for kube-proxy's DaemonSet", name)
	}
	return m[1]
}

// TestGuideNamesWhatExists: the guide's presets exist, and its sed command matches the manifest.
func TestGuideNamesWhatExists(t *testing.T) {
	text := guide(t, "install.md")
	for _, name := range presetNames(t) {
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
		t.Errorf("docs/install.md replaces %q, which charts/manifests/kubeadm.yaml does not contain", sed)
	}
}

func TestValuesOnPages(t *testing.T) {
	pages, err := guides.Pages(root)
	if err != nil {
		t.Fatal(err)
	}
	rendered := 0
	for _, page := range pages {
		for _, block := range page.Blocks {
			if strings.HasPrefix(block.NotRun, "values of the chart") {
				mustRender(t, parse(t, strings.Join(block.Text, "\n")))
				rendered++
			}
		}
	}
	if rendered < 2 {
		t.Errorf("rendered only %d blocks of values; docs/install.md and docs/side-by-side.md must contain more", rendered)
	}
}
