package main

import (
	"fmt"
	"path/filepath"
	"strings"
)

// moduleIndex is the content of depmod's files.
type moduleIndex struct {
	path    map[string]string   // module name to file, relative to the module directory
	needs   map[string][]string // module name to the files that it needs, nearest first
	builtin map[string]bool
	// noBuiltinList is true if the package has no list of built-in modules. Every unknown name is then assumed to be
	// built in.
	noBuiltinList bool
}

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

// moduleName returns the kernel's name for a module, without directory and suffix, with underscores instead of
// dashes.
func moduleName(file string) string {
	name, _, _ := strings.Cut(filepath.Base(file), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

// resolve returns the files of modules in load order. Built-in modules have no file.
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
		// modules.dep also lists indirect dependencies. Each module depends only on those after it.
		needs := m.needs[name]
		for i := len(needs) - 1; i >= 0; i-- {
			add(needs[i])
		}
		add(file)
	}
	return files, nil
}
