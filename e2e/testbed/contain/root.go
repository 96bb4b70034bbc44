package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// enter moves this thread to a new mount namespace and makes the container's files its root.
func (c container) enter() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare mounts: %w", err)
	}
	// Unmounts on the machine must still propagate to this namespace, but mounts in it must not reach the machine.
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("separate mounts: %w", err)
	}
	if c.root == "/" {
		return c.lockMachine()
	}
	return c.enterImage()
}

// lockMachine makes everything read-only except the mounts.
func (c container) lockMachine() error {
	table, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(table)) {
		place := strings.Fields(line)[4]
		// Ignore mounts that another mount hides, and mounts of network namespaces that were deleted meanwhile.
		if err := setReadOnly(place, true); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	for _, m := range c.mounts {
		if err := m.bind("/"); err != nil {
			return err
		}
	}
	return nil
}

// enterImage builds a container's file system from an image and makes it the root.
func (c container) enterImage() error {
	root, err := layer(c.root)
	if err != nil {
		return err
	}
	for _, fs := range kernelFilesystems {
		if err := fs.mount(root); err != nil {
			return err
		}
	}
	if err := devices(root); err != nil {
		return err
	}
	if err := hideMachine(root); err != nil {
		return err
	}
	for _, m := range c.mounts {
		if err := m.bind(root); err != nil {
			return err
		}
	}
	if err := setReadOnly(root, true); err != nil {
		return err
	}
	return pivot(root)
}

// layer mounts an overlay in memory over the image's files, so that mount points can be created.
func layer(image string) (string, error) {
	const base = "/sys" // the container needs no machine files there
	if err := unix.Mount("tmpfs", base, "tmpfs", 0, "mode=755"); err != nil {
		return "", fmt.Errorf("mount tmpfs: %w", err)
	}
	upper, work, root := filepath.Join(base, "upper"), filepath.Join(base, "work"), filepath.Join(base, "root")
	for _, dir := range []string{upper, work, root} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return "", err
		}
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", image, upper, work)
	if err := unix.Mount("overlay", root, "overlay", 0, options); err != nil {
		return "", fmt.Errorf("mount the image %s: %w", image, err)
	}
	return root, nil
}

type filesystem struct {
	kind, target string
	flags        uintptr
	options      string
}

// kernelFilesystems are mounted in every container.
var kernelFilesystems = []filesystem{
	{"proc", "/proc", unix.MS_NOSUID | unix.MS_NOEXEC | unix.MS_NODEV, ""},
	{"sysfs", "/sys", unix.MS_NOSUID | unix.MS_NOEXEC | unix.MS_NODEV | unix.MS_RDONLY, ""},
	{"tmpfs", "/dev", unix.MS_NOSUID | unix.MS_STRICTATIME, "mode=755,size=65536k"},
}

func (f filesystem) mount(root string) error {
	target := filepath.Join(root, f.target)
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(f.kind, target, f.kind, f.flags, f.options); err != nil {
		return fmt.Errorf("mount %s: %w", f.target, err)
	}
	return nil
}

func devices(root string) error {
	for _, name := range []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"} {
		if err := (mount{source: name, target: name}).bind(root); err != nil {
			return err
		}
	}
	return nil
}

// hideMachine hides parts of /proc, or makes them read-only, as container runtimes do. See maskedPaths and
// readonlyPaths in https://github.com/opencontainers/runtime-spec.
func hideMachine(root string) error {
	var covers []mount
	for _, path := range []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"} {
		covers = append(covers, mount{filepath.Join(root, path), path, true})
	}
	for _, path := range []string{"/proc/kcore", "/proc/keys", "/proc/timer_list"} {
		covers = append(covers, mount{"/dev/null", path, false})
	}
	for _, m := range covers {
		if _, err := os.Stat(filepath.Join(root, m.target)); err != nil {
			continue
		}
		if err := m.bind(root); err != nil {
			return err
		}
	}
	return nil
}

// bind creates the mount point if it does not exist.
func (m mount) bind(root string) error {
	target := filepath.Join(root, m.target)
	if err := makePlace(m.source, target); err != nil {
		return err
	}
	if err := unix.Mount(m.source, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mount %s at %s: %w", m.source, m.target, err)
	}
	return setReadOnly(target, m.readOnly)
}

func makePlace(source, target string) error {
	if _, err := os.Stat(target); err == nil {
		return nil
	}
	info, err := os.Stat(source)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return os.MkdirAll(target, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	return os.WriteFile(target, nil, 0o644)
}

// setReadOnly keeps the mount's other flags. It does not use mount_setattr, which needs Linux 5.12.
func setReadOnly(path string, readOnly bool) error {
	var now unix.Statfs_t
	if err := unix.Statfs(path, &now); err != nil {
		return fmt.Errorf("read the flags of mount %s: %w", path, err)
	}
	flags := unix.MS_REMOUNT | unix.MS_BIND | uintptr(now.Flags)&(unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC)
	if readOnly {
		flags |= unix.MS_RDONLY
	}
	if err := unix.Mount("", path, "", flags, ""); err != nil {
		return fmt.Errorf("set mount %s read-only: %t: %w", path, readOnly, err)
	}
	return nil
}

// pivot makes the directory the root and unmounts the old root.
func pivot(root string) error {
	if err := os.Chdir(root); err != nil {
		return err
	}
	// The old root is now mounted on top of the new one, so unmounting it requires no separate directory.
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount the machine's files: %w", err)
	}
	return os.Chdir("/")
}
