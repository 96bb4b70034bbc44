package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/e2e/lab/loopback"
)

// dataPlaneEnv is set to nftables or userspace if the programs in the lab do not balance with IPVS.
const dataPlaneEnv = "KUBE_IPVS_DATA_PLANE"

func withoutIPVS() bool {
	return slices.Contains([]string{"nftables", "userspace"}, os.Getenv(dataPlaneEnv))
}

// ipvsFile exists in a network namespace if the kernel has IPVS.
const ipvsFile = "/proc/thread-self/net/ip_vs"

func gatherFacts(want string) facts {
	f := facts{
		root:    os.Geteuid() == 0,
		ipvs:    withoutIPVS() || hasIPVS(),
		release: runningRelease(),
		amd64:   runtime.GOARCH == "amd64",
	}
	if want != "qemu" && want != modeUML && f.root && f.ipvs {
		f.nativeFail = probeNative()
	}
	return f
}

func runningRelease() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(name.Release[:])
}

// hasIPVS reports whether ip_vs is present or can be loaded. It does not load the module.
func hasIPVS() bool {
	if _, err := os.Stat(ipvsFile); err == nil {
		return true
	}
	dir := filepath.Join("/lib/modules", runningRelease())
	for _, name := range []string{"modules.dep", "modules.builtin"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil && strings.Contains(string(text), "/ip_vs.ko") {
			return true
		}
	}
	return false
}

// nativeCommand returns a command for the first process of new namespaces. When that process dies, the kernel kills
// all other processes in the namespaces.
func nativeCommand(args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL,
	}
	return cmd
}

// probeNative returns the reason why namespaces with IPVS do not work, for example in an unprivileged container.
func probeNative() string {
	if !withoutIPVS() {
		// Ignore errors: modprobe may fail even if IPVS works, for example because the module is built in.
		_ = exec.Command("modprobe", "ip_vs").Run()
	}
	if out, err := nativeCommand("native-probe").CombinedOutput(); err != nil {
		return fmt.Sprintf("namespaces with IPVS do not work here (%v %s)", err, strings.TrimSpace(string(out)))
	}
	return ""
}

func nativeProbeCommand([]string) (int, error) {
	if withoutIPVS() {
		return 0, nil
	}
	_, err := os.Stat(ipvsFile)
	return 0, err
}

func runNatively(opts options, j job, why string) (int, error) {
	if err := ensurePrograms("lab"); err != nil {
		return 0, err
	}
	out, err := openResults(opts.out)
	if err != nil {
		return 0, err
	}
	notice("native, kernel %s (%s)", runningRelease(), why)
	spec, err := json.Marshal(guestSpec{Args: j.args, Keep: keepVisible(out.path)})
	if err != nil {
		return 0, err
	}
	stops := notifyStops()
	cmd := nativeCommand("native-init", string(spec))
	cmd.Env = append(passedEnv(os.Environ()), labEnv("native", runningRelease(), out.path)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if j.stdin != nil {
		cmd.Stdin = os.Stdin
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	status := waitNative(cmd, opts.timeout, stops)
	return status, out.close(false)
}

// waitNative ends the namespaces after the command, its time limit or a signal.
func waitNative(cmd *exec.Cmd, timeout time.Duration, stops <-chan os.Signal) int {
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // the status is checked below
		close(ended)
	}()
	status := 0
	select {
	case <-ended:
		return shellStatus(cmd.ProcessState.Sys().(syscall.WaitStatus))
	case <-after(timeout):
		notice("the time limit of %s has passed", timeout)
		status = exitTimeout
	case sig := <-stops:
		status = 128 + int(sig.(syscall.Signal))
	}
	_ = cmd.Process.Kill() // fails only if the process has ended
	<-ended
	return status
}

func nativeInitCommand(args []string) (int, error) {
	var spec guestSpec
	if err := json.Unmarshal([]byte(args[0]), &spec); err != nil {
		return 0, err
	}
	if err := prepareNamespaces(spec.Keep); err != nil {
		return 0, err
	}
	path, err := exec.LookPath(spec.Args[0])
	if err != nil {
		notice("%v", err)
		return startStatus(err), nil
	}
	status, err := superviseAsInit(path, spec.Args, os.Environ(), "")
	if err != nil {
		notice("%v", err)
		return startStatus(err), nil
	}
	return status, nil
}

func prepareNamespaces(keep []string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := privateFolders(keep); err != nil {
		return err
	}
	// These file systems reflect the namespaces of the process that mounts them.
	if err := mountAll(
		mountPoint{"proc", "/proc", "proc", 0, ""},
		mountPoint{"sysfs", "/sys", "sysfs", 0, ""},
	); err != nil {
		return err
	}
	return loopback.Up()
}
