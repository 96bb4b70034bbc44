package main

import (
	"os"
	"path/filepath"
)

// results is the directory $LAB_OUT.
type results struct {
	path string
	run  *runDir // nil if the user named the directory
}

func openResults(given string) (results, error) {
	if given != "" {
		return results{path: given}, os.MkdirAll(given, 0o755)
	}
	run, err := newRunDir("out")
	if err != nil {
		return results{}, err
	}
	return results{run.path, run}, nil
}

// close removes the directory, unless the user named it, the command wrote files, or there was trouble.
func (r results) close(trouble bool) error {
	if r.run == nil {
		return nil
	}
	left, err := os.ReadDir(r.path)
	if err != nil {
		return err
	}
	if !worthKeeping(left, trouble) {
		r.run.remove()
		return nil
	}
	notice("results are in %s", relative(r.path))
	return r.run.keep()
}

func worthKeeping(left []os.DirEntry, trouble bool) bool {
	for _, entry := range left {
		if entry.Name() != kernelLogName || trouble {
			return true
		}
	}
	return false
}

// relative shortens a path for messages.
func relative(path string) string {
	dir, err := os.Getwd()
	if err != nil {
		return path
	}
	if short, err := filepath.Rel(dir, path); err == nil && len(short) < len(path) {
		return short
	}
	return path
}
