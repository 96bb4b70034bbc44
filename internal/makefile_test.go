package internal

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	testVariable = regexp.MustCompile(`(?m)^(\w+) := (\^Test.*)$`)
	testsChosen  = regexp.MustCompile(`PKG=(\./\S+) RUN='([^']+)'`)
	packageParts = regexp.MustCompile(`(\./e2e/[\w/]+):Test(\S+)`)
	testFunction = regexp.MustCompile(`(?m)^func Test(\w+)\(`)
)

// TestMakefileNamesTests: the tests that the Makefile selects by name exist. Otherwise make fails only when it reaches them, after
// everything before has run.
func TestMakefileNamesTests(t *testing.T) {
	text, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	makefile := string(text)
	for _, v := range testVariable.FindAllStringSubmatch(makefile, -1) {
		makefile = strings.ReplaceAll(makefile, "$(value "+v[1]+")", v[2])
	}
	chosen := testsChosen.FindAllStringSubmatch(makefile, -1)
	parts := packageParts.FindAllStringSubmatch(makefile, -1)
	if len(chosen) == 0 || len(parts) == 0 {
		t.Fatal("found no tests that the Makefile selects by name")
	}
	for _, c := range chosen {
		names, _, _ := strings.Cut(strings.TrimPrefix(c[2], "^Test"), "$$") // then come subtests
		checkTests(t, c[1], strings.Split(strings.Trim(names, "()"), "|"))
	}
	for _, p := range parts {
		checkTests(t, p[1], strings.Split(p[2], "|Test"))
	}
}

// checkTests reports names without a test function in the package. The names lack the prefix "Test".
func checkTests(t *testing.T, pkg string, names []string) {
	t.Helper()
	var have []string
	files, _ := filepath.Glob(filepath.Join("..", pkg, "*_test.go"))
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range testFunction.FindAllStringSubmatch(string(source), -1) {
			have = append(have, f[1])
		}
	}
	for _, name := range names {
		if !slices.Contains(have, name) {
			t.Errorf("the Makefile selects Test%s of %s, which does not exist", name, pkg)
		}
	}
}
