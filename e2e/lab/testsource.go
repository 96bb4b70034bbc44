package main

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// testFunctions are the test functions of a package. If a file imports labtest, or a helper package that provides a
// kernel, all its tests are kernel tests. "make check" runs the others on the host.
type testFunctions struct{ kernel, host []string }

var testFunction = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Example)\w*)\(`)

func findTests(dir string, files, givers []string) (testFunctions, error) {
	var found testFunctions
	for _, name := range files {
		path := filepath.Join(dir, name)
		text, err := os.ReadFile(path)
		if err != nil {
			return testFunctions{}, err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.ImportsOnly)
		if err != nil {
			return testFunctions{}, err
		}
		into := &found.host
		for _, spec := range file.Imports {
			if imported, err := strconv.Unquote(spec.Path.Value); err == nil && slices.Contains(givers, imported) {
				into = &found.kernel
			}
		}
		for _, match := range testFunction.FindAllSubmatch(text, -1) {
			if name := string(match[1]); name != "TestMain" {
				*into = append(*into, name)
			}
		}
	}
	slices.Sort(found.kernel)
	slices.Sort(found.host)
	return found, nil
}

func skipPattern(names ...string) string {
	if len(names) == 0 {
		return ""
	}
	return "^(" + strings.Join(names, "|") + ")$"
}
