package internal

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	testVariable = regexp.MustCompile(`(?m)^(\w+) := (\^Test.*)$`)
	testsChosen  = regexp.MustCompile(`PKG=(\./\S+) RUN='([^']+)'`)
	testsNamed   = regexp.MustCompile(`go test (\./\S+) -run (\w+)`)
	packageParts = regexp.MustCompile(`(\./e2e/[\w/]+):Test(\S+)`)
	testFunction = regexp.MustCompile(`(?m)^func Test(\w+)\(`)

	documented = regexp.MustCompile(`(?m)^([a-z0-9-]+):.*## `)
	shownMain  = regexp.MustCompile(`(?m)^  make (\S+) .*\((?:an?|half an|\d+) (?:minutes?|hours?|day)\)`)
	shown      = regexp.MustCompile(`(?m)^  (\S+) +\S`)
)

// TestContributingNamesTests: the tests that CONTRIBUTING.md runs by name exist. Otherwise its commands would succeed
// without testing anything.
func TestContributingNamesTests(t *testing.T) {
	text, err := os.ReadFile("../CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	commands := testsNamed.FindAllStringSubmatch(string(text), -1)
	if len(commands) == 0 {
		t.Fatal("CONTRIBUTING.md has no command that runs tests by name")
	}
	for _, c := range commands {
		checkTests(t, c[1], []string{c[2]})
	}
}

// TestHelp: make help shows six targets with their run times, and help-all shows all documented targets.
func TestHelp(t *testing.T) {
	help := makeHelp(t, "help")
	want := []string{"demo", "check", "kernel-test", "e2e", "test", "nightly"}
	if got := names(shownMain, help); !slices.Equal(got, want) || len(names(shown, help)) != len(want) {
		t.Errorf("make help shows %q, want %q with their run times:\n%s", got, want, help)
	}
	lines := strings.Split(strings.TrimSpace(help), "\n")
	if last := lines[len(lines)-1]; !strings.Contains(last, "make help-all") || !strings.Contains(last, "docs/lab.md") {
		t.Errorf("make help ends with %q, want make help-all and docs/lab.md", last)
	}
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := names(shown, makeHelp(t, "help-all")), names(documented, string(makefile)); !slices.Equal(got, want) {
		t.Errorf("make help-all shows %q, want %q", got, want)
	}
}

func makeHelp(t *testing.T, target string) string {
	t.Helper()
	cmd := exec.Command("make", "--no-print-directory", "-C", "..", target)
	cmd.Env = append(os.Environ(), "MAKEFLAGS=") // make check may run this test, and its flags must not apply
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("make %s: %v\n%s", target, err, out)
	}
	return string(out)
}

func names(pattern *regexp.Regexp, text string) []string {
	var found []string
	for _, m := range pattern.FindAllStringSubmatch(text, -1) {
		found = append(found, m[1])
	}
	return found
}

// TestMakefileNamesTests: the tests that the Makefile selects by name exist. Otherwise make fails only when it reaches the missing tests, after running everything before them.
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
		t.Fatal("the Makefile selects no tests by name")
	}
	for _, c := range chosen {
		names, _, _ := strings.Cut(strings.TrimPrefix(c[2], "^Test"), "$$") // the names of subtests follow
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
			t.Errorf("Test%s of %s does not exist", name, pkg)
		}
	}
}
