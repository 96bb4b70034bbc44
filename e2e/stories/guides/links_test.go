package guides

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/upstream"
)

var (
	link     = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading  = regexp.MustCompile(`^#{1,6} (.*)$`)
	noLetter = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// anchors returns a page's link targets, as GitHub derives them from headings.
func anchors(text string) []string {
	var all []string
	fenced := false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
		}
		m := heading.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil || fenced {
			continue
		}
		title := link.ReplaceAllString(m[1], "]")
		anchor := strings.ReplaceAll(noLetter.ReplaceAllString(strings.ToLower(title), ""), " ", "-")
		for n, first := 1, anchor; slices.Contains(all, anchor); n++ {
			anchor = first + "-" + strconv.Itoa(n)
		}
		all = append(all, anchor)
	}
	return all
}

// TestLinks checks that links to files in the repository, and to anchors in them, work.
func TestLinks(t *testing.T) {
	root, err := upstream.Root()
	if err != nil {
		t.Fatal(err)
	}
	files := []string{"README.md", "charts/kube-ipvs/README.md"}
	for _, pattern := range []string{"docs/*.md", "docs/*/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range found {
			name, err := filepath.Rel(root, file)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, name)
		}
	}
	for _, file := range files {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if !strings.Contains(m[1], "://") {
				follow(t, root, file, m[1])
			}
		}
	}
}

func follow(t *testing.T, root, from, target string) {
	t.Helper()
	path, anchor, _ := strings.Cut(target, "#")
	to := filepath.Join(root, from)
	if path != "" {
		to = filepath.Join(filepath.Dir(to), path)
	}
	if _, err := os.Stat(to); err != nil {
		t.Errorf("%s links to %s: %v", from, target, err)
		return
	}
	if anchor == "" {
		return
	}
	text, err := os.ReadFile(to)
	if err != nil {
		t.Errorf("%s links to %s: %v", from, target, err)
		return
	}
	if !slices.Contains(anchors(string(text)), anchor) {
		t.Errorf("%s links to %s: no such heading", from, target)
	}
}

// TestIndexNamesEveryPage checks that readers can find every page from the README.md in its folder.
func TestIndexNamesEveryPage(t *testing.T) {
	index := map[string]string{}
	for _, page := range pages(t) {
		if folder, name := filepath.Split(page.Name); name == "README.md" {
			index[folder] = strings.Join(page.Lines, "\n")
		}
	}
	for _, page := range pages(t) {
		folder, name := filepath.Split(page.Name)
		if name != "README.md" && !strings.Contains(index[folder], "]("+name+")") {
			t.Errorf("%sREADME.md does not link to %s", folder, name)
		}
	}
}
