package main

import (
	_ "embed"
	"errors"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/e2e/record"
)

//go:embed nightly.txt
var nightlyTests string

// check prints every test below root that did not pass in any step and is not listed in nightly.txt.
func check(w io.Writer, root string, dirs []string) error {
	tests, err := source(root)
	if err != nil {
		return err
	}
	passed := map[string]bool{}
	for _, dir := range dirs {
		results, err := record.ReadTests(dir)
		if err != nil {
			return err
		}
		for _, r := range results {
			passed[r.Name()] = passed[r.Name()] || r.Status == "PASS"
		}
	}
	left := leftOut()
	ran, named, missing := 0, 0, 0
	for _, test := range tests {
		switch {
		case passed[test]:
			ran++
		case slices.ContainsFunc(left, func(l leftTest) bool { return l.name.MatchString(test) }):
			named++
		default:
			missing++
			fmt.Fprintln(w, "ran nowhere:", test)
		}
	}
	fmt.Fprintf(w, "%d test functions: %d ran, %d are named in e2e/ran/nightly.txt, %d ran nowhere\n", len(tests), ran, named, missing)
	if missing > 0 {
		return errors.New("a test that no step runs proves nothing: run it, or list it in e2e/ran/nightly.txt")
	}
	return nil
}

// leftTest is a line of nightly.txt: tests that are not in the gate, and the part that runs them.
type leftTest struct {
	part string
	name *regexp.Regexp // matches "PACKAGE" or "PACKAGE TEST"
}

func leftOut() (all []leftTest) {
	for line := range strings.Lines(nightlyTests) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		part, name, _ := strings.Cut(line, ": ")
		all = append(all, leftTest{part, regexp.MustCompile("^(?:" + name + ")(?: |$)")})
	}
	return all
}

// forgotten lists the tests that nightly.txt assigns to a part but that did not finish in it.
func forgotten(part, root string, ended []record.Test) (names []string) {
	tests, err := source(root)
	if err != nil {
		return []string{err.Error()}
	}
	for _, l := range leftOut() {
		for _, test := range tests {
			if l.part == part && l.name.MatchString(test) && !slices.ContainsFunc(ended, func(t record.Test) bool { return t.Name() == test }) {
				names = append(names, test+" did not run")
			}
		}
	}
	return names
}

// source lists the tests of this platform as "PACKAGE TEST".
func source(root string) (tests []string, err error) {
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && (name == "testdata" || len(name) > 1 && name[0] == '.') {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(name, "_test.go") {
			return nil
		}
		if match, err := build.Default.MatchFile(filepath.Dir(path), name); err != nil || !match {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && function.MatchString(f.Name.Name) && f.Name.Name != "TestMain" {
				tests = append(tests, dir+" "+f.Name.Name)
			}
		}
		return err
	})
	return tests, err
}

var function = regexp.MustCompile(`^(?:Test|Fuzz)(?:[^a-z]|$)`)
