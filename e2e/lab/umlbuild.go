package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// umlConfig lists every enabled kernel option.
//
//go:embed uml.config
var umlConfig []byte

// umlPatch makes page faults cheaper. It has no context lines, because it applies to exactly one version.
//
//go:embed uml.patch
var umlPatch []byte

// The source comes from Debian's unstable suite.
const (
	umlSuite   = "sid"
	umlPackage = "linux-source-7.2"
	umlVersion = "7.2.13-1"
)

// umlMinutes is the duration of a build on two cores. umlObjects is the approximate number of compiled files.
const (
	umlMinutes = 12
	umlObjects = 1030
)

// umlTried marks a build that has booted on this machine.
const umlTried = "booted"

// findUML returns the cached user-mode Linux. The first call builds and tests it.
func findUML() (kernel, error) {
	if _, err := exec.LookPath("apt-get"); err != nil {
		return kernel{}, fmt.Errorf("fetching its source from Debian needs apt, which is not installed")
	}
	base, err := cacheDir(modeUML)
	if err != nil {
		return kernel{}, err
	}
	dir := filepath.Join(base, umlPin())
	err = withLock(modeUML+"-"+umlPin(), func() error {
		if _, err := os.Stat(filepath.Join(dir, umlTried)); err == nil {
			return nil
		}
		if _, err := os.Stat(dir); err != nil {
			if err := buildUML(dir); err != nil {
				return err
			}
		}
		return tryUML(dir)
	})
	if err != nil {
		return kernel{}, err
	}
	return umlAt(dir)
}

// umlPin identifies a build by all its inputs.
func umlPin() string {
	digest := sha256.New()
	fmt.Fprintf(digest, "%s %s\n%s%s", umlPackage, umlVersion, umlConfig, umlPatch)
	return umlVersion + "-" + hex.EncodeToString(digest.Sum(nil))[:8]
}

func umlAt(dir string) (kernel, error) {
	image := filepath.Join(dir, "linux")
	out, err := exec.Command(image, "--version").Output()
	if err != nil {
		return kernel{}, fmt.Errorf("%s --version: %w", image, err)
	}
	release := strings.TrimSpace(string(out))
	return kernel{release: release, image: image, modules: filepath.Join(dir, "lib/modules", release)}, nil
}

// tryUML boots the kernel once. It may fail on this machine, for example if seccomp or mount namespaces are
// forbidden.
func tryUML(dir string) error {
	k, err := umlAt(dir)
	if err != nil {
		return err
	}
	if !boots(machineConfig{kernel: k, accel: modeUML, mem: "256M"}, dir, 20*time.Second) {
		return fmt.Errorf("its test boot failed")
	}
	return os.WriteFile(filepath.Join(dir, umlTried), nil, 0o644)
}

// buildUML builds the kernel and its modules into dir atomically.
func buildUML(dir string) error {
	if err := ensurePrograms("uml"); err != nil {
		return err
	}
	work := dir + ".unfinished"
	if err := os.RemoveAll(work); err != nil {
		return err
	}
	notice("building user-mode Linux %s (once, about %d minutes on 2 cores)", umlVersion, umlMinutes)
	began := time.Now()
	source, err := umlSource(work)
	if err != nil {
		return err
	}
	result := filepath.Join(work, "result")
	if err := compileUML(source, result); err != nil {
		return err
	}
	image, err := os.ReadFile(filepath.Join(result, "linux"))
	if err != nil {
		return err
	}
	notice("built user-mode Linux %s in %s, sha256 %x", umlVersion, time.Since(began).Round(time.Second), sha256.Sum256(image))
	if err := os.Rename(result, dir); err != nil {
		return err
	}
	return os.RemoveAll(work)
}

func umlSource(work string) (string, error) {
	apt, err := updatedApt(umlSuite)
	if err != nil {
		return "", err
	}
	packed := filepath.Join(work, "package")
	if err := os.MkdirAll(packed, 0o755); err != nil {
		return "", err
	}
	if err := apt.Unpack(packed, []string{umlPackage + "=" + umlVersion}); err != nil {
		return "", fmt.Errorf("fetch %s %s: %w\n(if Debian %s has another version, set umlVersion in e2e/lab/umlbuild.go to it)",
			umlPackage, umlVersion, err, umlSuite)
	}
	// Skip most of the archive: the tables of a graphics driver, and the code of other architectures except for
	// Kconfig files.
	args := []string{"-xJf", filepath.Join(packed, "usr/src", umlPackage+".tar.xz"), "-C", work, "--exclude=*/drivers/gpu/drm/amd/include/*"}
	for _, files := range []string{"*.[chS]", "*.dts", "*.dtsi"} {
		args = append(args, "--exclude="+umlPackage+"/arch/a"+files, "--exclude="+umlPackage+"/arch/[c-tv-w]"+files)
	}
	unpack := exec.Command("tar", args...)
	if out, err := unpack.CombinedOutput(); err != nil {
		return "", fmt.Errorf("unpack the kernel's source: %w\n%s", err, out)
	}
	source := filepath.Join(work, umlPackage)
	patch := exec.Command("patch", "-d", source, "-p1", "--fuzz=0")
	patch.Stdin = bytes.NewReader(umlPatch)
	if out, err := patch.CombinedOutput(); err != nil {
		return "", fmt.Errorf("apply uml.patch to %s %s: %w\n%s", umlPackage, umlVersion, err, out)
	}
	return source, nil
}

func compileUML(source, result string) error {
	config := filepath.Join(source, "lab.config")
	if err := os.WriteFile(config, umlConfig, 0o644); err != nil {
		return err
	}
	jobs := "-j" + strconv.Itoa(runtime.NumCPU())
	if err := makeUML(source, []string{"KCONFIG_ALLCONFIG=" + config, "allnoconfig"}); err != nil {
		return err
	}
	if err := checkUMLConfig(filepath.Join(source, ".config")); err != nil {
		return err
	}
	for _, step := range [][]string{
		{jobs, "linux", "modules"},
		{"INSTALL_MOD_PATH=" + result, "modules_install"},
	} {
		if err := makeUML(source, step); err != nil {
			return err
		}
	}
	return os.Rename(filepath.Join(source, "linux"), filepath.Join(result, "linux"))
}

func makeUML(source string, args []string) error {
	cmd := exec.Command("make", append([]string{"-C", source, "ARCH=um"}, args...)...)
	// Make the build reproducible.
	cmd.Env = append(os.Environ(), "KBUILD_BUILD_TIMESTAMP=2026-01-01 00:00:00 UTC", "KBUILD_BUILD_USER=lab", "KBUILD_BUILD_HOST=lab", "LC_ALL=C",
		"MAKEFLAGS=", "MAKELEVEL=")
	progress, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	if err := cmd.Start(); err != nil {
		return err
	}
	showProgress(progress)
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("make %s: %w\n%s", strings.Join(args, " "), err, lastLines(complaints.String(), 20))
	}
	return nil
}

// showProgress counts compiled files.
func showProgress(output io.Reader) {
	const every = 30 * time.Second
	compiled, next := 0, time.Now().Add(every)
	for lines := bufio.NewScanner(output); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "  CC ") {
			compiled++
		}
		if now := time.Now(); now.After(next) {
			next = now.Add(every)
			notice("compiled %d of about %d files", compiled, umlObjects)
		}
	}
}

// checkUMLConfig checks that every option took effect, because make silently drops an option with missing
// dependencies.
func checkUMLConfig(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var lost []string
	for line := range strings.Lines(string(umlConfig)) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "CONFIG_") && !strings.Contains("\n"+string(text), "\n"+line+"\n") {
			lost = append(lost, line)
		}
	}
	if len(lost) > 0 {
		return fmt.Errorf("uml.config: the kernel dropped %s", strings.Join(lost, ", "))
	}
	return nil
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
