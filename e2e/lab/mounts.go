package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// mountPoint is one mount(2) call. A missing target is created.
type mountPoint struct {
	source, target, fstype string
	flags                  uintptr
	data                   string
}

func mountAll(points ...mountPoint) error {
	for _, p := range points {
		if err := os.MkdirAll(p.target, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(p.source, p.target, p.fstype, p.flags, p.data); err != nil {
			return fmt.Errorf("mount %s on %s: %w", p.fstype, p.target, err)
		}
	}
	return nil
}

// coverWithTmpfs hides a directory under an empty tmpfs, except the directories in keep. A repository cloned to /tmp
// must remain visible.
func coverWithTmpfs(dir, mode string, keep []string) error {
	kept := map[string]int{}
	for _, path := range keep {
		if !strings.HasPrefix(path, dir+"/") {
			continue
		}
		fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("keep %s visible: %w", path, err)
		}
		defer unix.Close(fd)
		kept[path] = fd
	}
	if err := mountAll(mountPoint{"tmpfs", dir, "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=" + mode}); err != nil {
		return err
	}
	for path, fd := range kept {
		source := fmt.Sprintf("/proc/self/fd/%d", fd)
		if err := mountAll(mountPoint{source, path, "", unix.MS_BIND | unix.MS_REC, ""}); err != nil {
			return err
		}
	}
	return nil
}

// privateFolders gives the command its own /run and /tmp, to protect the machine's locks, namespace names and
// temporary files.
func privateFolders(keep []string) error {
	if err := coverWithTmpfs("/run", "755", keep); err != nil {
		return err
	}
	if err := coverWithTmpfs("/tmp", "1777", keep); err != nil {
		return err
	}
	return os.MkdirAll("/run/lock", 0o1777)
}

// keepVisible lists directories that every command needs.
func keepVisible(more ...string) []string {
	keep := more
	if dir, err := os.Getwd(); err == nil {
		keep = append(keep, dir)
	}
	if root, err := repoRoot(); err == nil {
		keep = append(keep, root)
	}
	if exe, err := os.Executable(); err == nil {
		keep = append(keep, filepath.Dir(exe))
	}
	if cache, err := cacheDir(); err == nil {
		keep = append(keep, cache)
	}
	return keep
}
