package internal

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	namedTest  = regexp.MustCompile("`(Test[A-Z]\\w+)`")
	namedStory = regexp.MustCompile(`stor(?:y|ies) ("[^"]+"(?: and "[^"]+")*)`)
	anyTest    = regexp.MustCompile(`(?m)^func (Test\w+)\(`)
)

// TestDocsNameTests: the tests and stories that pages name as proofs exist.
func TestDocsNameTests(t *testing.T) {
	tests, sources := testsOf(t, "../internal", "../e2e", "../cmd")
	pages, err := filepath.Glob("../docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		flat := strings.Join(strings.Fields(string(text)), " ")
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

// testsOf returns the names of the tests in some directories, and the text of their files.
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
