package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// guestModules are the modules that a guest needs to mount its root and to reach the host. It loads other modules
// from that root on demand.
var guestModules = []string{"virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay"}

// counted emulates a CPU that executes one instruction per nanosecond of the guest's clock. Durations then do not
// depend on the host's load.
const counted = "counted"

type machine struct {
	cmd     *exec.Cmd
	port    *os.File
	stderr  bytes.Buffer // QEMU's error output
	console consoleTail
	ended   chan struct{}
}

type machineConfig struct {
	kernel kernel
	qemu   emulator // none for user-mode Linux
	accel  string
	mem    string
	cpus   int
	// without lists modules that the kernel refuses to load.
	without string
	clock   string // skippingClock, or a key of umlClocks for user-mode Linux, or empty
	spec    guestSpec
}

func startMachine(c machineConfig) (*machine, error) {
	initrd, err := initramfsFile(c.kernel, c.spec)
	if err != nil {
		return nil, err
	}
	defer initrd.Close()
	cmd := exec.Command(c.qemu.program, append(slices.Clone(c.qemu.args), qemuArgs(c)...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Pdeathsig: syscall.SIGKILL,
		Setpgid:   true, // Ctrl-C goes to the lab, which then stops the guest cleanly
	}
	return launch(cmd, initrd)
}

// launch starts QEMU or user-mode Linux. Its channels are open files, which need no cleanup: descriptor 3 is the
// port, 4 the console (also stdout), and 5 an optional file. The program dies with this process.
func launch(cmd *exec.Cmd, file *os.File) (*machine, error) {
	port, guestPort, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer guestPort.Close()
	console, guestConsole, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer guestConsole.Close()

	m := &machine{port: port, ended: make(chan struct{}), cmd: cmd}
	m.cmd.ExtraFiles = []*os.File{guestPort, guestConsole}
	if file != nil {
		m.cmd.ExtraFiles = append(m.cmd.ExtraFiles, file)
	}
	m.cmd.Stdout, m.cmd.Stderr = guestConsole, &m.stderr
	if err := m.cmd.Start(); err != nil {
		return nil, err
	}
	m.console.ended = make(chan struct{})
	go m.console.follow(console)
	go func() {
		_ = m.cmd.Wait() // the session reports whether the guest ended as intended
		close(m.ended)
	}()
	return m, nil
}

// kill ends the process and waits until it has exited.
func (m *machine) kill() {
	_ = m.cmd.Process.Kill()
	<-m.ended
	m.port.Close()
}

// lastWords returns the console output of a guest that died.
func (m *machine) lastWords() string {
	select {
	case <-m.ended:
	case <-time.After(2 * time.Second): // a guest that panicked may still print
	}
	m.kill()
	<-m.console.ended
	words := m.console.String()
	if errors := strings.TrimSpace(m.stderr.String()); errors != "" {
		words += "\n" + errors
	}
	return strings.TrimSpace(words)
}

func qemuArgs(c machineConfig) []string {
	args := []string{
		"-nodefaults", "-no-user-config", "-display", "none", "-vga", "none", "-no-reboot",
		"-m", c.mem, "-smp", strconv.Itoa(c.cpus),
		"-kernel", bootImage(c.kernel), "-initrd", "/dev/fd/5", "-append", kernelArgs(c, tscKHz()),
		"-chardev", "socket,id=port,fd=3", "-chardev", "socket,id=console,fd=4",
		"-serial", "chardev:console",
		"-device", "virtio-serial-pci,max_ports=2", "-device", "virtserialport,chardev=port,name=" + portName,
		// multidevs keeps the inode numbers of different file systems distinct, because the share contains the whole
		// root.
		"-fsdev", "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap",
		"-device", "virtio-9p-pci,fsdev=root,mount_tag=" + rootTag,
		"-fsdev", "local,id=out,path=" + escapeComma(c.spec.Out) + ",security_model=none",
		"-device", "virtio-9p-pci,fsdev=out,mount_tag=" + outTag,
	}
	switch c.accel {
	case "kvm":
		return append(args, "-machine", "pc,accel=kvm", "-cpu", "host")
	case counted:
		// Each byte of a string instruction counts as an instruction, so the CPU must not advertise fast string instructions.
		sleep := map[bool]string{true: "off", false: "on"}[c.clock == skippingClock]
		return append(args, "-machine", "pc", "-accel", "tcg,thread=single,tb-size=512", "-icount", "shift=0,sleep="+sleep, "-cpu", "max,-erms,-fsrm")
	}
	return append(args, "-machine", "pc", "-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max,-erms,-fsrm,-smap,-smep")
}

// escapeComma doubles commas, which separate QEMU's options.
func escapeComma(s string) string { return strings.ReplaceAll(s, ",", ",,") }

// kernelArgs returns the kernel's command line. tsc is the frequency of the host's time stamp counter in kHz.
func kernelArgs(c machineConfig, tsc uint64) string {
	args := []string{
		"console=ttyS0", "quiet", "panic=-1", "log_buf_len=4M", "rdinit=/init",
		"mitigations=off", "nokaslr", "audit=0", "apparmor=0", "random.trust_cpu=on", "cgroup_no_v1=all",
	}
	if c.without != "" {
		args = append(args, "module_blacklist="+c.without)
	}
	switch c.accel {
	case counted:
		args = append(args, "tsc_early_khz=1000000")
	case "tcg":
		args = append(args, fmt.Sprintf("tsc_early_khz=%d", tsc))
	}
	if c.accel != "kvm" {
		// The kernel may report a lockup when an emulated CPU waits for the host. Five-level page tables slow down an
		// emulated CPU.
		args = append(args, "nowatchdog", "rcupdate.rcu_cpu_stall_suppress=1", "no5lvl", "tsc=reliable")
	}
	// The kernel passes arguments after the two dashes to the first process.
	return strings.Join(append(args, specVar+"="+initSpec, "--", guestInit), " ")
}

// initramfsFile builds the initramfs for one run in memory. This takes about 20 ms and needs no cleanup.
func initramfsFile(k kernel, spec guestSpec) (*os.File, error) {
	exe, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return nil, err
	}
	index, err := k.index()
	if err != nil {
		return nil, err
	}
	modules, err := index.resolve(guestModules...)
	if err != nil {
		return nil, fmt.Errorf("kernel %s: %w", k.release, err)
	}
	files := []initFile{{"init", 0o755, exe}}
	for i, module := range modules {
		data, err := k.readModule(module)
		if err != nil {
			return nil, err
		}
		name := fmt.Sprintf("modules/%02d-%s.ko", i, moduleName(module))
		files = append(files, initFile{name, 0o644, data})
		spec.Load = append(spec.Load, "/"+name)
	}
	text, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	archive, err := initramfsBytes(append(files, initFile{filepath.Base(initSpec), 0o600, text}))
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("lab-initramfs", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	file := os.NewFile(uintptr(fd), "initramfs")
	_, err = file.Write(archive)
	return file, err
}

// socketPair returns two connected files. Our end can be closed during a blocked read.
func socketPair() (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(fds[0]), "lab"), os.NewFile(uintptr(fds[1]), "qemu"), nil
}
