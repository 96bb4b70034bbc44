// Command page turns the results of make bench-peers into docs/performance.md and its pictures.
//
// It is a separate module, so that the agent does not depend on the plotting library.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/e2e/bench"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: page RESULTS DOCS")
		os.Exit(2)
	}
	if err := write(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// write writes the generated files into the docs directory.
func write(results, docs string) error {
	files, err := generate(results, docs)
	if err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(docs, name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// generate returns the files by their path in the docs directory.
func generate(results, docs string) (map[string][]byte, error) {
	all, err := read(results)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for name, p := range plots {
		if !p.shows(all) {
			continue
		}
		if files["images/"+name], err = p.draw(all); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	page, err := os.ReadFile(filepath.Join(docs, pageName))
	if err != nil {
		return nil, err
	}
	files[pageName], err = fill(string(page), all)
	return files, err
}

// read reads all results in a directory, ordered by program and size.
func read(folder string) ([]bench.Result, error) {
	paths, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil {
		return nil, err
	}
	var all []bench.Result
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		var r bench.Result
		if err := json.Unmarshal(text, &r); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		all = append(all, r)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no results in %s", folder)
	}
	slices.SortFunc(all, func(a, b bench.Result) int {
		if a.Services != b.Services {
			return a.Services - b.Services
		}
		return strings.Compare(order(a), order(b))
	})
	return all, nil
}

// order puts kube-ipvs first.
func order(r bench.Result) string {
	if r.Program == "kube-ipvs" {
		return ""
	}
	return r.Program
}
