package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// User-mode Linux is a kernel that runs as a process on the host. Programs run at the host's speed, except for system
// calls. The guest has one CPU, because a second one made it slower.
//
// The guest uses the host's root through hostfs. The guest's kernel therefore runs in namespaces in which everything
// except the results directory is read-only (see umlHostCommand).

// umlHost is the argument of umlHostCommand.
type umlHost struct {
	Kernel string
	Args   []string
	Out    string // the only directory the guest may write to
	CPUs   string // directory with a lock for each CPU
}

func startUML(c machineConfig) (*machine, error) {
	c.spec.UML = true
	spec, err := writeUMLSpec(c.spec)
	if err != nil {
		return nil, err
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	locks, err := cacheDir("cpus")
	if err != nil {
		return nil, err
	}
	host, err := json.Marshal(umlHost{Kernel: c.kernel.image, Args: umlArgs(c, exe, spec), Out: c.spec.Out, CPUs: locks})
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("/proc/self/exe", "uml-host", string(host))
	cmd.SysProcAttr = umlAttributes()
	return launch(cmd, nil)
}

// umlArgs returns the kernel's arguments. Descriptor 3 is the port. The kernel passes arguments after the two dashes
// to the first process.
func umlArgs(c machineConfig, exe, spec string) []string {
	args := []string{
		"seccomp=on", "mem=" + c.mem, "uml_dir=" + umlScratch, "root=none", "rootfstype=hostfs", "ro", "init=" + exe,
		"con=null", "con0=null,fd:1", "ssl=null", "ssl0=fd:3", "quiet", "panic=-1", "log_buf_len=4M", "cgroup_no_v1=all",
		specVar + "=" + spec,
	}
	if travel := umlClocks[c.clock]; travel != "" {
		args = append(args, travel)
	}
	return append(args, "--", guestInit)
}

func writeUMLSpec(spec guestSpec) (string, error) {
	text, err := json.Marshal(spec)
	if err != nil {
		return "", err
	}
	path := filepath.Join(spec.Out, umlSpecName)
	return path, os.WriteFile(path, text, 0o600)
}

// umlSpecName is the job's file in the results directory. The guest removes it.
const umlSpecName = ".lab-spec.json"

// cheapGo returns an environment variable for Go programs in user-mode Linux. Preemption by signals is expensive: a
// kube-apiserver started in 30 s instead of 11 s. With multipath TCP, the kernel runs modprobe twice for each program.
func cheapGo() string {
	return "GODEBUG=" + strings.TrimPrefix(os.Getenv("GODEBUG")+",asyncpreemptoff=1,multipathtcp=0", ",")
}

// umlScratch is for the guest's memory and the kernel's own files.
const umlScratch = "/dev/shm"

// umlAttributes makes the kernel run in new namespaces. When their first process dies, the host's kernel kills all
// others.
func umlAttributes() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL,
		Setpgid:    true, // Ctrl-C goes to the lab, which then stops the guest cleanly
	}
	if os.Geteuid() != 0 {
		attr.Cloneflags |= unix.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	return attr
}

// umlHostCommand is the first process of the namespaces. It gives up every right to write to the host, and runs the
// guest's kernel.
func umlHostCommand(args []string) (int, error) {
	var host umlHost
	if err := json.Unmarshal([]byte(args[0]), &host); err != nil {
		return 0, err
	}
	lock, err := stayOnOneCPU(host.CPUs)
	if err != nil {
		return 0, err
	}
	defer lock.Close()
	if err := protectHost(host); err != nil {
		return 0, err
	}
	// The host switches between two processes for each system call of the guest. On a busy host, each switch waited
	// for a time slice, which made guests fifty times slower regardless of their nice value. Real-time processes
	// switch immediately, and the host reserves 5% of the time for other processes. If the host does not permit real-time
	// scheduling, the guest is merely slower.
	_ = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: 1}, 0)
	go watchMappings("/proc", 5*time.Second, nil, func(err error) {
		fmt.Fprintln(os.Stderr, "lab:", err)
		os.Exit(1) // the host's kernel then ends the guest
	})
	const port = 3 // the kernel inherits it under this number
	return superviseAsInit(host.Kernel, append([]string{"linux"}, host.Args...), []string{"TMPDIR=" + umlScratch, "HOME=" + umlScratch}, "/", port)
}

// stayOnOneCPU binds this process and its children to the CPU with the fewest guests, because waking another CPU
// takes twice as long. The returned file reserves the CPU.
func stayOnOneCPU(locks string) (*os.File, error) {
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		return nil, os.NewSyscallError("sched_getaffinity", err)
	}
	for guest := 0; ; guest++ {
		for cpu := range len(allowed) * 64 {
			if !allowed.IsSet(cpu) {
				continue
			}
			lock, err := os.OpenFile(filepath.Join(locks, fmt.Sprintf("%d-%d", cpu, guest)), os.O_RDONLY|os.O_CREATE, 0o644)
			if err != nil {
				return nil, err
			}
			if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
				var one unix.CPUSet
				one.Set(cpu)
				return lock, os.NewSyscallError("sched_setaffinity", unix.SchedSetaffinity(0, &one))
			}
			lock.Close()
		}
	}
}

// protectHost makes all file systems except the results directory read-only in this mount namespace.
func protectHost(host umlHost) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount(host.Out, host.Out, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s: %w", host.Out, err)
	}
	readOnly := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, &readOnly); err != nil {
		return fmt.Errorf("make the host read-only: %w", err)
	}
	writable := unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(unix.AT_FDCWD, host.Out, 0, &writable); err != nil {
		return fmt.Errorf("make %s writable: %w", host.Out, err)
	}
	return mountAll(
		mountPoint{"tmpfs", umlScratch, "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=700"},
		mountPoint{"proc", "/proc", "proc", 0, ""},
	)
}
