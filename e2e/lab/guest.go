package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/e2e/lab/loopback"
)

// Names that the host and the guest share.
const (
	rootTag   = "labroot" // 9p share of the host's root
	outTag    = "labout"  // 9p share of the results directory
	portName  = "lab.port"
	guestInit = "guest-init" // the subcommand that is the guest's first process
	specVar   = "LAB_SPEC"   // kernel argument that becomes a variable of the guest's first process
	initSpec  = "/spec.json"
	runSpec   = "/run/lab/spec.json"
)

type guestSpec struct {
	Args    []string // empty for a test boot
	Env     []string
	Dir     string
	Out     string
	Keep    []string
	Release string
	Modules string   // directory with modules.dep, on the host
	Load    []string // modules in the initramfs, in order
	UML     bool     // user-mode Linux
	TTY     bool
	Window  windowSize
}

func readSpec(path string) (spec guestSpec, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return guestSpec{}, err
	}
	return spec, json.Unmarshal(text, &spec)
}

// guestInitCommand is the guest's first process. It builds a root file system from the host's and powers off when the
// runner ends.
func guestInitCommand([]string) (int, error) {
	if os.Getpid() != 1 {
		return 0, errors.New("guest-init is the first process of a guest")
	}
	if err := guestMain(); err != nil {
		fmt.Fprintf(os.Stderr, "lab: guest: %v\n", err)
	}
	unix.Sync()
	// QEMU exits on a restart because of -no-reboot; powering off would need ACPI. User-mode Linux would boot again.
	how := unix.LINUX_REBOOT_CMD_RESTART
	if runtimeIsUML() {
		how = unix.LINUX_REBOOT_CMD_POWER_OFF
	}
	return exitBroken, os.NewSyscallError("reboot", unix.Reboot(how))
}

func guestMain() error {
	if err := mountAll(
		mountPoint{"proc", "/proc", "proc", 0, ""},
		mountPoint{"devtmpfs", "/dev", "devtmpfs", 0, ""},
	); err != nil {
		return err
	}
	spec, err := readSpec(os.Getenv(specVar))
	if err != nil {
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
	if err := prepareSystem(spec); err != nil {
		return err
	}
	if spec.UML {
		_ = os.Remove(filepath.Join(spec.Out, umlSpecName))
	}
	// After the root has changed, the program's path is unreachable, but this link still works.
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

// hostShare returns the mount of a host directory. The host's files do not change during a run, so 9p may cache them without
// revalidation, which is much faster.
func (s guestSpec) hostShare(tag, dir, target string, readOnly bool) mountPoint {
	flags := uintptr(0)
	if readOnly {
		flags = unix.MS_RDONLY
	}
	if s.UML {
		return mountPoint{"none", target, "hostfs", flags, dir}
	}
	data := "trans=virtio,version=9p2000.L,msize=262144"
	if readOnly {
		data += ",cache=loose"
	}
	return mountPoint{tag, target, "9p", flags, data}
}

// switchRoot makes the host's root the root of every process. An overlay in memory receives all writes.
func switchRoot(spec guestSpec) error {
	// The guest cannot create a directory on the host's root, so use an existing one.
	const base, new = "/tmp", "/tmp/new"
	if err := mountAll(
		mountPoint{"tmpfs", base, "tmpfs", 0, "size=80%,mode=755"},
		spec.hostShare(rootTag, "/", base+"/host", true),
	); err != nil {
		return err
	}
	for _, dir := range []string{base + "/upper", base + "/work"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	if err := mountAll(
		mountPoint{"overlay", new, "overlay", 0, "lowerdir=" + base + "/host,upperdir=" + base + "/upper,workdir=" + base + "/work"},
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

func prepareSystem(spec guestSpec) error {
	if err := privateFolders(spec.Keep); err != nil {
		return err
	}
	if err := mountAll(spec.hostShare(outTag, spec.Out, spec.Out, false)); err != nil {
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
	text, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	return os.WriteFile(runSpec, text, 0o600)
}

// linkModules links the kernel's modules into the directory that modprobe searches. The kernel can then load modules
// automatically.
func linkModules(spec guestSpec) error {
	place := filepath.Join("/lib/modules", spec.Release)
	if _, err := os.Stat(filepath.Join(place, "modules.dep")); err == nil {
		return nil
	}
	if err := os.MkdirAll("/lib/modules", 0o755); err != nil {
		return err
	}
	// Symlink fails if the directory exists.
	if err := os.RemoveAll(place); err != nil {
		return err
	}
	return os.Symlink(spec.Modules, place)
}

// linkDevices adds the links that udev would create. On some kernels, devtmpfs already contains them.
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

func runtimeIsUML() bool {
	text, err := os.ReadFile("/proc/cpuinfo")
	return err == nil && strings.Contains(string(text), "User Mode Linux")
}
