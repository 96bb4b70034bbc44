package main

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

//go:embed nightly.txt
var nightly string

// check prints every test function below root that passed in no step, and that nightly.txt does not name.
func check(w io.Writer, root string, dirs []string) error {
	tests, err := source(root)
	if err != nil {
		return err
	}
	passed := map[string]bool{}
	for _, dir := range dirs {
		if err := read(dir, passed); err != nil {
			return err
		}
	}
	left := leftOut()
	ran, named, missing := 0, 0, 0
	for _, test := range tests {
		switch {
		case passed[test]:
			ran++
		case slices.ContainsFunc(left, func(r *regexp.Regexp) bool { return r.MatchString(test) }):
			named++
		default:
			missing++
			fmt.Fprintln(w, "ran nowhere:", test)
		}
	}
	fmt.Fprintf(w, "%d test functions: %d ran, %d are named in e2e/ran/nightly.txt, %d ran nowhere\n", len(tests), ran, named, missing)
	if missing > 0 {
		return errors.New("a test that no step runs proves nothing: run it, or name it in e2e/ran/nightly.txt")
	}
	return nil
}

// leftOut has an expression for each line of nightly.txt: a package, or a package and a test.
func leftOut() (all []*regexp.Regexp) {
	for line := range strings.Lines(nightly) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			all = append(all, regexp.MustCompile("^(?:"+line+")(?: |$)"))
		}
	}
	return all
}

// source lists the test functions of this platform as "PACKAGE TEST".
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

// read adds the tests that passed according to the files below a directory.
func read(dir string, passed map[string]bool) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".jsonl" {
			return err
		}
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer file.Close()
		for lines := json.NewDecoder(file); ; {
			var r result
			if err := lines.Decode(&r); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			if r.Status == "PASS" && !strings.Contains(r.Test, "/") {
				passed[r.Package+" "+r.Test] = true
			}
		}
	})
}
