package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	probeTime = 6 * time.Second // a guest needs a second or two if KVM works
	stopTime  = 5 * time.Second // time for the guest to kill the command and save its kernel log
)

// runInQEMU boots a QEMU guest for one job.
func runInQEMU(opts options, j job, why string) (int, error) {
	if err := ensurePrograms("qemu", "lab"); err != nil {
		return 0, err
	}
	k, err := findKernel(opts.kernel)
	if err != nil {
		return 0, err
	}
	qemu, err := findEmulator()
	if err != nil {
		return 0, err
	}
	accel, whyAccel := chooseAccel(opts.accel, accelFacts{
		device: unix.Access("/dev/kvm", unix.R_OK|unix.W_OK) == nil,
		probe:  func() bool { return kvmWorks(opts, k, qemu) },
	})
	config := machineConfig{kernel: k, qemu: qemu, accel: accel, mem: opts.mem, cpus: opts.cpus, without: opts.without, clock: opts.clock}
	return runInGuest(config, opts, j, why+"; "+whyAccel)
}

// runInUML boots user-mode Linux for one job. If user-mode Linux is unavailable, the job runs in QEMU, unless it
// needs the virtual clock.
func runInUML(opts options, j job, why string) (int, error) {
	if err := ensurePrograms("lab"); err != nil {
		return 0, err
	}
	k, err := findUML()
	if err != nil && umlClocks[opts.clock] != "" {
		return 0, userErrorf("LAB_CLOCK=%s needs user-mode Linux, which is unavailable: %v", opts.clock, err)
	}
	if err != nil {
		return runInQEMU(opts, j, fmt.Sprintf("user-mode Linux is unavailable: %v", err))
	}
	return runInGuest(machineConfig{kernel: k, accel: modeUML, mem: opts.mem, clock: opts.clock}, opts, j, why)
}

func runInGuest(c machineConfig, opts options, j job, why string) (int, error) {
	out, err := openResults(opts.out)
	if err != nil {
		return 0, err
	}
	notice("%s, kernel %s (%s)", c.name(), c.kernel.release, why)
	c.spec = j.guestSpec(c.kernel, out.path)
	c.spec.Env = append(c.spec.Env, labEnv(c.name(), c.kernel.release, out.path)...)
	if c.accel == modeUML {
		c.spec.Env = append(c.spec.Env, cheapGo())
	}
	status, keep, err := runMachine(c, opts.hostLimit(), j)
	return status, firstError(err, out.close(keep))
}

func (c machineConfig) name() string {
	name := "qemu " + c.accel
	if c.accel == modeUML {
		name = modeUML
	}
	if umlClocks[c.clock] != "" {
		name += " " + c.clock
	}
	return name
}

func (c machineConfig) start() (*machine, error) {
	if c.accel == modeUML {
		return startUML(c)
	}
	return startMachine(c)
}

// runMachine returns the command's status, and whether the results directory must be kept.
func runMachine(c machineConfig, timeout time.Duration, j job) (status int, keep bool, err error) {
	stops := notifyStops()
	m, err := c.start()
	if err != nil {
		return 0, false, err
	}
	defer m.kill()
	v := conversation{session: newSession(m.port), out: c.spec.Out, timeout: timeout, stops: stops, ownClock: c.accel == counted || umlClocks[c.clock] != "", lastWords: m.lastWords}
	return v.run(j)
}

func reportKernel(r exitReport, out string) bool {
	if r.Kernel == "" {
		return false
	}
	notice("THE GUEST'S KERNEL REPORTED A PROBLEM (full log in %s):\n%s", filepath.Join(out, kernelLogName), r.Kernel)
	return true
}

// after returns a channel like time.After. It never fires if d is zero.
func after(d time.Duration) <-chan time.Time {
	if d == 0 {
		return nil
	}
	return time.After(d)
}

// kvmWorks boots this kernel once under KVM and caches the result.
func kvmWorks(opts options, k kernel, qemu emulator) bool {
	dir, err := cacheDir("kvm")
	if err != nil {
		return false
	}
	name := fmt.Sprintf("%s on %s with %s", k.release, runningRelease(), qemu.version)
	verdict := filepath.Join(dir, strings.Map(fileNameRune, name))
	works := false
	err = withLock("kvm", func() error {
		if text, err := os.ReadFile(verdict); err == nil {
			works = string(text) == "works\n"
			return nil
		}
		notice("trying KVM with a test boot (once, at most %s)", probeTime)
		text := "fails\n"
		if works = boots(machineConfig{kernel: k, qemu: qemu, accel: "kvm", mem: "512M", cpus: opts.cpus}, dir, probeTime); works {
			text = "works\n"
		}
		return os.WriteFile(verdict, []byte(text), 0o644)
	})
	return err == nil && works
}

func fileNameRune(r rune) rune {
	if r == '/' || r == ' ' || r == ':' {
		return '_'
	}
	return r
}

// boots reports whether a guest starts its runner. The runner has no command to run.
func boots(c machineConfig, out string, limit time.Duration) bool {
	c.spec = guestSpec{Out: out, Release: c.kernel.release, Modules: c.kernel.modules, Keep: keepVisible(out)}
	m, err := c.start()
	if err != nil {
		return false
	}
	defer m.kill()
	ended := make(chan error, 1)
	go func() {
		_, err := newSession(m.port).follow()
		ended <- err
	}()
	select {
	case err := <-ended:
		return err == nil
	case <-m.ended:
		return false
	case <-time.After(limit):
		return false
	}
}
