package internal

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	namedTest  = regexp.MustCompile("`(Test[A-Z]\\w+)`")
	namedStory = regexp.MustCompile(`stor(?:y|ies) ("[^"]+"(?: and "[^"]+")*)`)
	anyTest    = regexp.MustCompile(`(?m)^func (Test\w+)\(`)

	namedMetric = regexp.MustCompile(`\b(?:kube_ipvs|kubeproxy)_[a-z_]+`)
	namedFile   = regexp.MustCompile("`([\\w/]+\\.go)`")
)

// TestDocsNameTests: the tests and stories that pages name as proofs exist.
func TestDocsNameTests(t *testing.T) {
	tests, sources := testsOf(t, "../internal", "../e2e", "../cmd")
	for page, text := range pages(t) {
		flat := strings.Join(strings.Fields(text), " ")
		for _, m := range namedTest.FindAllStringSubmatch(flat, -1) {
			if !tests[m[1]] {
				t.Errorf("%s names %s, which does not exist", page, m[1])
			}
		}
		for _, m := range namedStory.FindAllStringSubmatch(flat, -1) {
			for _, story := range strings.Split(m[1], " and ") {
				name, _, _ := strings.Cut(strings.Trim(story, `"`), " …")
				if !strings.Contains(sources, `t.Run("`+name) {
					t.Errorf("%s names the story %q, which does not exist", page, name)
				}
			}
		}
	}
}

// TestDocsNameMetrics: the metrics that pages name exist. A name that ends in "_" is a prefix that at least one metric
// must have.
func TestDocsNameMetrics(t *testing.T) {
	all := pages(t)
	for page, text := range all {
		for _, name := range namedMetric.FindAllString(text, -1) {
			row := "| `" + name
			if !strings.HasSuffix(name, "_") {
				row += "`"
			}
			if !strings.Contains(all["../docs/metrics.md"], row) && name != "kubeproxy_conntrack_reconciler_" {
				t.Errorf("%s names the metric %s, which does not exist", page, name)
			}
		}
	}
}

// TestDocsNameFiles: the source files that pages name exist.
func TestDocsNameFiles(t *testing.T) {
	files := map[string]bool{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && slices.Contains([]string{".git", ".cache"}, d.Name()) {
			return fs.SkipDir
		}
		for rest, more := filepath.ToSlash(path), true; more; _, rest, more = strings.Cut(rest, "/") {
			files[rest] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for page, text := range pages(t) {
		for _, m := range namedFile.FindAllStringSubmatch(text, -1) {
			if !files[m[1]] {
				t.Errorf("%s names the file %s, which does not exist", page, m[1])
			}
		}
	}
}

func pages(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, pattern := range []string{"../docs/*.md", "../docs/*/*.md"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d pages, %v", pattern, len(files), err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			all[file] = string(text)
		}
	}
	return all
}

func testsOf(t *testing.T, folders ...string) (names map[string]bool, sources string) {
	t.Helper()
	names = map[string]bool{}
	var all strings.Builder
	for _, folder := range folders {
		err := filepath.WalkDir(folder, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			all.Write(text)
			for _, m := range anyTest.FindAllStringSubmatch(string(text), -1) {
				names[m[1]] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return names, all.String()
}
