package site

import (
	"html"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/upstream"
)

var (
	identifier = regexp.MustCompile(`\bid="([^"]+)"`)
	reference  = regexp.MustCompile(`\b(?:href|src)="([^"]+)"`)
)

// TestSite builds the site. It checks that all links point to existing files and headings, and that pages load nothing from a network.
func TestSite(t *testing.T) {
	root, err := upstream.Root()
	if err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	if err := Build(root, out); err != nil {
		t.Error(err)
	}
	pages := htmlFiles(t, out)
	if len(pages) < 60 {
		t.Errorf("only %d pages", len(pages))
	}
	ids := map[string]bool{}
	for file, text := range pages {
		for _, m := range identifier.FindAllStringSubmatch(text, -1) {
			ids[file+"#"+m[1]] = true
		}
	}
	for file, text := range pages {
		for _, m := range reference.FindAllStringSubmatch(text, -1) {
			target := html.UnescapeString(m[1])
			name, fragment, hasFragment := strings.Cut(target, "#")
			to := filepath.Join(filepath.Dir(file), name)
			if name == "" {
				to = file
			}
			if strings.Contains(target, "://") {
				if strings.HasPrefix(m[0], "src") {
					t.Errorf("%s loads %s from the network", file, target)
				}
			} else if _, err := os.Stat(to); err != nil || hasFragment && !ids[to+"#"+fragment] {
				t.Errorf("%s: %s does not exist", file, target)
			}
		}
	}
}

func htmlFiles(t *testing.T, out string) map[string]string {
	t.Helper()
	pages := map[string]string{}
	err := filepath.WalkDir(out, func(file string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(file) != ".html" {
			return err
		}
		text, err := os.ReadFile(file)
		pages[file] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return pages
}

const sample = "# Big [Title](x.md): `a.b`, twice\n## Same\nsome\ntext\n## Same\n<!-- hidden -->\n```\n# not one\n```\n### Client's address\n"

func TestParse(t *testing.T) {
	want := []section{
		{1, "big-title-ab-twice", "Big Title: a.b, twice", ""}, {2, "same", "Same", "some text "},
		{2, "same-1", "Same", "# not one "}, {3, "clients-address", "Client's address", ""},
	}
	if diff := cmp.Diff(want, parse("page.md", []byte(sample)).sections); diff != "" {
		t.Errorf("sections differ (-want +got):\n%s", diff)
	}
}

// TestMistakes checks that Build reports broken links and pages missing from the index.
func TestMistakes(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		icon:             "<svg/>",
		"README.md":      "# Home\n[a](docs/a.md#there) [b](docs/a.md#gone) [c](missing.md)\n",
		"docs/README.md": "# Index\n## Operators\n### All\n- [a](a.md)\n",
		"docs/a.md":      "# A\n## There\n",
		"docs/b.md":      "# B\n",
	} {
		if err := write(root, name, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	err := Build(root, t.TempDir())
	if err == nil {
		t.Fatal("no error")
	}
	got := strings.ReplaceAll(err.Error(), root+"/", "")
	want := "docs/README.md does not link to docs/b.md\n" +
		"README.md links to docs/a.md#gone: docs/a.md has no such heading\n" +
		"README.md links to missing.md: stat missing.md: no such file or directory"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
