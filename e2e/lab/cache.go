package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cachedir"
)

func repoRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "go.mod")); err == nil {
			return d, nil
		}
		if d == filepath.Dir(d) {
			return "", userErrorf("no go.mod in %s or above; use the lab inside the repository", dir)
		}
	}
}

// cacheDir creates and returns a directory in the cache that all clones share.
func cacheDir(elem ...string) (string, error) {
	root, err := repoRoot()
	if err != nil {
		return "", err
	}
	return makeDir(cachedir.Path(root, append([]string{"lab"}, elem...)...))
}

// localDir returns a directory in this clone for files of runs.
func localDir(elem ...string) (string, error) {
	root, err := repoRoot()
	if err != nil {
		return "", err
	}
	return makeDir(filepath.Join(append([]string{root, ".cache", "lab"}, elem...)...))
}

func makeDir(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	return path, os.MkdirAll(path, 0o755)
}

// runDir is the directory of one run. A killed lab leaves its directory behind, but the kernel releases the directory's
// lock.
type runDir struct {
	path string
	lock *os.File
}

// newRunDir creates a directory for this run, and removes directories of the same kind left behind by killed labs.
func newRunDir(kind string) (*runDir, error) {
	base, err := localDir(kind)
	if err != nil {
		return nil, err
	}
	var d *runDir
	return d, withLock("runs", func() error {
		sweepRuns(base)
		path, err := os.MkdirTemp(base, time.Now().Format("20060102-150405-"))
		if err != nil {
			return err
		}
		lock, err := lockDir(path)
		d = &runDir{path, lock}
		return err
	})
}

func lockDir(path string) (*os.File, error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

// keepMark marks directories whose paths were reported to the user.
const keepMark = ".keep"

func sweepRuns(base string) {
	entries, _ := os.ReadDir(base)
	for _, entry := range entries {
		path := filepath.Join(base, entry.Name())
		if _, err := os.Stat(filepath.Join(path, keepMark)); err == nil {
			continue
		}
		if lock, err := lockDir(path); err == nil {
			os.RemoveAll(path)
			lock.Close()
		}
	}
}

func (d *runDir) remove() {
	os.RemoveAll(d.path)
	d.lock.Close()
}

func (d *runDir) keep() error {
	d.lock.Close()
	return os.WriteFile(filepath.Join(d.path, keepMark), nil, 0o644)
}

// withLock runs fn while it holds the named lock. The kernel releases the lock if the process dies.
func withLock(name string, fn func() error) error {
	dir, err := cacheDir("lock")
	if err != nil {
		return err
	}
	file, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer file.Close()
	if unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		notice("waiting for another lab that is preparing %s", name)
		if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
			return fmt.Errorf("lock %s: %w", file.Name(), err)
		}
	}
	return fn()
}
