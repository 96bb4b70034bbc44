package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// testFunctions sorts the test functions of a package by whether they can reach package labtest.
type testFunctions struct {
	// sure ones name labtest, or a function that does: they must turn out to have run on the kernel.
	sure []string
	// maybe ones only might reach it, by a method's name or another package: they run, but nothing is expected.
	maybe []string
	// ordinary ones cannot; a lab run leaves them out.
	ordinary []string
}

// declarations are what the files of a package declare, and the names each declaration uses.
type declarations struct {
	uses    map[string]map[string]bool // by plain name
	methods map[string]map[string]bool // by method name, without its type
}

// Stand-ins for imported packages in the sets of used names; no Go name contains a slash.
const (
	usesLabtest = "/labtest"
	usesHelper  = "/helper"
)

// classifyTests reads test files. helpers are the import paths of packages that import labtest themselves.
func classifyTests(dir string, files []string, labtest string, helpers map[string]bool) (testFunctions, error) {
	d := declarations{uses: map[string]map[string]bool{}, methods: map[string]map[string]bool{}}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return testFunctions{}, err
		}
		d.add(file, labtest, helpers)
	}
	return d.classify(), nil
}

func (d declarations) add(file *ast.File, labtest string, helpers map[string]bool) {
	imported := importNames(file, labtest, helpers)
	for _, decl := range file.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			into := d.uses
			if decl.Recv != nil {
				into = d.methods
			}
			merge(into, decl.Name.Name, usedNames(decl, imported))
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				for _, name := range declaredNames(spec) {
					merge(d.uses, name, usedNames(spec, imported))
				}
			}
		}
	}
}

// importNames maps the names by which a file knows labtest and the helpers to their stand-ins.
func importNames(file *ast.File, labtest string, helpers map[string]bool) map[string]string {
	names := map[string]string{}
	for _, spec := range file.Imports {
		path, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue // the parser accepted it, the compiler will complain
		}
		standIn := usesHelper
		if path == labtest {
			standIn = usesLabtest
		} else if !helpers[path] {
			continue
		}
		name := filepath.Base(path)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		names[name] = standIn
	}
	return names
}

func declaredNames(spec ast.Spec) []string {
	switch spec := spec.(type) {
	case *ast.TypeSpec:
		return []string{spec.Name.Name}
	case *ast.ValueSpec:
		var names []string
		for _, name := range spec.Names {
			names = append(names, name.Name)
		}
		return names
	}
	return nil
}

func usedNames(node ast.Node, imported map[string]string) map[string]bool {
	used := map[string]bool{}
	ast.Inspect(node, func(n ast.Node) bool {
		if ident, ok := n.(*ast.Ident); ok {
			name := ident.Name
			if standIn, ok := imported[name]; ok {
				name = standIn
			}
			used[name] = true
		}
		return true
	})
	return used
}

func merge(into map[string]map[string]bool, name string, used map[string]bool) {
	if into[name] == nil {
		into[name] = map[string]bool{}
	}
	maps.Copy(into[name], used)
}

func (d declarations) classify() testFunctions {
	sure := d.reaching(false)
	maybe := d.reaching(true)
	var f testFunctions
	for _, name := range slices.Sorted(maps.Keys(d.uses)) {
		switch {
		case name == "TestMain" || !hasAnyPrefix(name, "Test", "Fuzz", "Example"):
		case sure[name]:
			f.sure = append(f.sure, name)
		case maybe[name] || maybe["TestMain"]:
			f.maybe = append(f.maybe, name)
		default:
			f.ordinary = append(f.ordinary, name)
		}
	}
	return f
}

// reaching returns the plain names that lead to labtest. Following methods and helpers too is a guess: a name says
// little about which method is meant, and a helper package may have more to offer than the kernel.
func (d declarations) reaching(guess bool) map[string]bool {
	reached := map[string]bool{usesLabtest: true}
	if guess {
		reached[usesHelper] = true
	}
	for grown := true; grown; {
		grown = false
		spread := func(declared map[string]map[string]bool) {
			for name, used := range declared {
				if !reached[name] && intersects(used, reached) {
					reached[name], grown = true, true
				}
			}
		}
		spread(d.uses)
		if guess {
			spread(d.methods)
		}
	}
	return reached
}

func intersects(a, b map[string]bool) bool {
	for name := range a {
		if b[name] {
			return true
		}
	}
	return false
}

// skipPattern is a -test.skip expression for the named functions; empty when there are none.
func skipPattern(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return "^(" + strings.Join(names, "|") + ")$"
}
