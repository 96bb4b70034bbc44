package main

import (
	"fmt"
	"path/filepath"
	"strings"
)

// moduleIndex contains a kernel's modules and their dependencies, as read from depmod's files.
type moduleIndex struct {
	path    map[string]string   // module name to file, relative to the module directory
	needs   map[string][]string // module name to the files it needs, nearest first as listed
	builtin map[string]bool
	// noBuiltinList is true if the package has no list of built-in modules. Any name that is not a module is then
	// assumed to be built in.
	noBuiltinList bool
}

// parseModules parses modules.dep and modules.builtin. The latter may be missing.
func parseModules(dep, builtin string) moduleIndex {
	index := moduleIndex{path: map[string]string{}, needs: map[string][]string{}, builtin: map[string]bool{}}
	for line := range strings.Lines(dep) {
		file, needs, ok := strings.Cut(strings.TrimSpace(line), ":")
		if !ok {
			continue
		}
		name := moduleName(file)
		index.path[name] = file
		index.needs[name] = strings.Fields(needs)
	}
	index.noBuiltinList = builtin == ""
	for line := range strings.Lines(builtin) {
		index.builtin[moduleName(strings.TrimSpace(line))] = true
	}
	return index
}

// moduleName returns the kernel's name for a module: no directory, no .ko or .ko.xz, and underscores instead of dashes.
func moduleName(file string) string {
	name, _, _ := strings.Cut(filepath.Base(file), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

// resolve returns the files to load for the named modules, in loading order. Built-in modules need none.
func (m moduleIndex) resolve(names ...string) ([]string, error) {
	var files []string
	seen := map[string]bool{}
	add := func(file string) {
		if !seen[file] {
			seen[file] = true
			files = append(files, file)
		}
	}
	for _, name := range names {
		name = moduleName(name)
		file, ok := m.path[name]
		if !ok {
			if m.builtin[name] || m.noBuiltinList {
				continue
			}
			return nil, fmt.Errorf("the kernel has no module %s", name)
		}
		// modules.dep also lists indirect dependencies, so loading from the last to the first works.
		needs := m.needs[name]
		for i := len(needs) - 1; i >= 0; i-- {
			add(needs[i])
		}
		add(file)
	}
	return files, nil
}
