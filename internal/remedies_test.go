package internal

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// proxyCleanup matches kube-proxy's own cleanup, which removes all virtual servers of a node. allowed matches a warning
// against that cleanup.
var (
	proxyCleanup = regexp.MustCompile(`(?:\S+ ){0,3}\S*kube-proxy[^.;:|]{0,20}--cleanup\b`)
	allowed      = regexp.MustCompile("^(?:\\S+ )?[Dd]o not run `kube-proxy --cleanup$")
)

// TestNobodyRecommendsTheCleanupOfKubeProxy: no text recommends kube-proxy's cleanup, but a text may warn against it.
func TestNobodyRecommendsTheCleanupOfKubeProxy(t *testing.T) {
	warnings := 0
	for _, root := range []string{"../README.md", "../CHANGELOG.md", "../docs", "../internal", "../cmd", "../charts"} {
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			flat := strings.Join(strings.Fields(string(text)), " ")
			for _, m := range proxyCleanup.FindAllString(flat, -1) {
				if !allowed.MatchString(m) {
					t.Errorf("%s: %q; recommend `kube-ipvs cleanup --kube-proxy-leftovers`", path, m)
				}
				warnings++
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if warnings == 0 {
		t.Error("no page warns against kube-proxy's own cleanup")
	}
}

// TestRecommendationsAreFound: the test above distinguishes a warning from a recommendation.
func TestRecommendationsAreFound(t *testing.T) {
	for text, want := range map[string]bool{
		"otherwise run `kube-proxy --cleanup`, or reboot":         true,
		"stop it first and run kube-proxy with --cleanup":         true,
		"Do not wait. Then run `kube-proxy --cleanup`.":           true,
		"Do not run `kube-proxy --cleanup`: it removes":           false,
		"gone. Do not run `kube-proxy --cleanup`: it removes":     false,
		"As with kube-proxy, some flags do one task: `--cleanup`": false,
	} {
		m := proxyCleanup.FindString(text)
		if got := m != "" && !allowed.MatchString(m); got != want {
			t.Errorf("%q: recommended %t (%q)", text, got, m)
		}
	}
}
