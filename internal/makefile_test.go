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
	testFunction = regexp.MustCompile(`(?m)^func Test(\w+)\(`)
)

// TestMakefileNamesTests: the tests that the Makefile chooses by name exist. One that does not is an empty selection, which fails only
// after all that comes before it has run.
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
	if len(chosen) == 0 {
		t.Fatal("the Makefile chooses no tests by name")
	}
	for _, c := range chosen {
		var there []string
		files, _ := filepath.Glob(filepath.Join("..", c[1], "*_test.go"))
		for _, file := range files {
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range testFunction.FindAllStringSubmatch(string(source), -1) {
				there = append(there, f[1])
			}
		}
		names := strings.TrimSuffix(strings.TrimPrefix(c[2], "^Test"), "$$")
		for _, name := range strings.Split(strings.Trim(names, "()"), "|") {
			if !slices.Contains(there, name) {
				t.Errorf("the Makefile chooses Test%s of %s, which has no such test", name, c[1])
			}
		}
	}
}
