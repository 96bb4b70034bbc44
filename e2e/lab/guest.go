package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/e2e/lab/loopback"
)

// What the host and the guest agree on by name.
const (
	rootTag  = "labroot" // 9p share of the host's root
	outTag   = "labout"  // 9p share of the results folder
	portName = "lab.port"
	initSpec = "/spec.json"
	runSpec  = "/run/lab/spec.json"
)

// guestSpec tells the guest what to do; the host puts it in the initramfs.
type guestSpec struct {
	Args    []string // empty: only boot, which is what a KVM probe wants
	Env     []string
	Dir     string
	Out     string
	Keep    []string
	Release string
	Modules string   // folder with modules.dep, on the host
	Load    []string // modules in the initramfs, in order
	TTY     bool
	Window  windowSize
}

// guestInit is the guest's first process, started by the kernel from the initramfs. It makes a comfortable root out of
// the host's, and powers off when the runner ends.
func guestInit() int {
	if err := guestMain(); err != nil {
		fmt.Fprintf(os.Stderr, "lab: guest: %v\n", err)
	}
	unix.Sync()
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART); err != nil {
		fmt.Fprintf(os.Stderr, "lab: guest: reboot: %v\n", err)
	}
	return exitBroken
}

func guestMain() error {
	if err := mountAll(
		mountPoint{"proc", "/proc", "proc", 0, ""},
		mountPoint{"devtmpfs", "/dev", "devtmpfs", 0, ""},
	); err != nil {
		return err
	}
	text, err := os.ReadFile(initSpec)
	if err != nil {
		return err
	}
	var spec guestSpec
	if err := json.Unmarshal(text, &spec); err != nil {
		return err
	}
	for _, file := range spec.Load {
		if err := loadModule(file); err != nil {
			return err
		}
	}
	if err := switchRoot(spec); err != nil {
		return err
	}
	if err := prepareSystem(spec, text); err != nil {
		return err
	}
	// The file behind /proc/self/exe is out of reach by name since the root changed, but not by this link.
	_, err = superviseAsInit("/proc/self/exe", []string{"lab", "guest-run"}, spec.Env, "/")
	return err
}

func loadModule(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && err != unix.EEXIST {
		return fmt.Errorf("load %s: %w", file, err)
	}
	return nil
}

// switchRoot makes the host's root, under a layer of memory that takes all writes, the root of every process.
func switchRoot(spec guestSpec) error {
	const new = "/root/new"
	// Nothing on the host changes that the guest must notice, so its cache may be loose; that makes 9p fast.
	if err := mountAll(
		mountPoint{rootTag, "/root/host", "9p", unix.MS_RDONLY, "trans=virtio,version=9p2000.L,msize=262144,cache=loose"},
		mountPoint{"tmpfs", "/root/memory", "tmpfs", 0, "size=80%,mode=755"},
	); err != nil {
		return err
	}
	for _, dir := range []string{"/root/memory/upper", "/root/memory/work"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	if err := mountAll(
		mountPoint{"overlay", new, "overlay", 0, "lowerdir=/root/host,upperdir=/root/memory/upper,workdir=/root/memory/work"},
		mountPoint{"proc", new + "/proc", "proc", 0, ""},
		mountPoint{"sysfs", new + "/sys", "sysfs", 0, ""},
		mountPoint{"cgroup2", new + "/sys/fs/cgroup", "cgroup2", 0, ""},
		mountPoint{"devtmpfs", new + "/dev", "devtmpfs", 0, ""},
		mountPoint{"devpts", new + "/dev/pts", "devpts", 0, "mode=620,ptmxmode=666"},
		mountPoint{"tmpfs", new + "/dev/shm", "tmpfs", 0, "mode=1777"},
	); err != nil {
		return err
	}
	if err := os.Chdir(new); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move the root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("chroot: %w", err)
	}
	return os.Chdir("/")
}

// prepareSystem does what a distribution's init would.
func prepareSystem(spec guestSpec, text []byte) error {
	if err := privateFolders(spec.Keep); err != nil {
		return err
	}
	if err := mountAll(mountPoint{outTag, spec.Out, "9p", 0, "trans=virtio,version=9p2000.L,msize=262144"}); err != nil {
		return err
	}
	if err := linkModules(spec); err != nil {
		return err
	}
	linkDevices()
	if err := unix.Sethostname([]byte("lab")); err != nil {
		return err
	}
	if err := loopback.Up(); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(runSpec), 0o755); err != nil {
		return err
	}
	return os.WriteFile(runSpec, text, 0o600)
}

// linkModules puts the kernel's modules where modprobe, and with it the kernel's own autoloading, looks.
func linkModules(spec guestSpec) error {
	place := filepath.Join("/lib/modules", spec.Release)
	if _, err := os.Stat(filepath.Join(place, "modules.dep")); err == nil {
		return nil
	}
	if err := os.MkdirAll("/lib/modules", 0o755); err != nil {
		return err
	}
	// A folder without modules.dep would make the link land inside it.
	if err := os.RemoveAll(place); err != nil {
		return err
	}
	return os.Symlink(spec.Modules, place)
}

// linkDevices adds the links udev would. A kernel whose devtmpfs has them already is fine too.
func linkDevices() {
	for link, target := range map[string]string{
		"/dev/fd":     "/proc/self/fd",
		"/dev/stdin":  "/proc/self/fd/0",
		"/dev/stdout": "/proc/self/fd/1",
		"/dev/stderr": "/proc/self/fd/2",
	} {
		_ = os.Symlink(target, link)
	}
}
