package internal

import (
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	raced      = regexp.MustCompile(`(?m)^concurrent := (.+)$`)
	concurrent = regexp.MustCompile(`(?m)^\t+go \w|^(?:\t|import )"(sync|sync/atomic|golang\.org/x/sync/errgroup)"$`)
)

// TestRaceDetectorRuns: make check uses the race detector for exactly the packages that have goroutines or locks.
func TestRaceDetectorRuns(t *testing.T) {
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	m := raced.FindSubmatch(makefile)
	if m == nil {
		t.Fatal("the Makefile has no list of packages for the race detector")
	}
	var want []string
	for _, pkg := range packages(t) {
		if !slices.Contains(testOnly, pkg.name) && isConcurrent(t, pkg.name) {
			want = append(want, "./"+path.Join("internal", pkg.name))
		}
	}
	slices.Sort(want)
	if got := slices.Sorted(slices.Values(strings.Fields(string(m[1])))); !slices.Equal(got, want) {
		t.Errorf("the Makefile's list is\n%s\nwant\n%s", strings.Join(got, " "), strings.Join(want, " "))
	}
}

func isConcurrent(t *testing.T, folder string) bool {
	t.Helper()
	files, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(files, func(f os.DirEntry) bool {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			return false
		}
		text, err := os.ReadFile(path.Join(folder, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		return concurrent.Match(text)
	})
}
