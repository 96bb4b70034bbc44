package main

import (
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// program is a host program that the lab needs, and its package in each distribution.
type program struct{ name, debian, fedora, arch string }

//go:embed packages.txt
var packageList string

func programsOf(groups ...string) []program {
	var programs []program
	chosen := false
	for line := range strings.Lines(packageList) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0 || line[0] == '#':
		case line[0] == '[':
			chosen = slices.Contains(groups, strings.Trim(fields[0], "[]"))
		case chosen:
			programs = append(programs, program{fields[0], fields[1], fields[2], fields[3]})
		}
	}
	return programs
}

// installCommand installs the host programs for a cluster with kubelets, the chart's tests or the browser test.
func installCommand(args []string) (int, error) {
	if len(args) != 1 || !slices.Contains([]string{"nodes", "chart", "browser"}, args[0]) {
		return 0, userErrorf("unexpected arguments; use lab install nodes, chart or browser")
	}
	addSbin()
	return 0, ensurePrograms(args[0])
}

// addSbin adds the sbin directories, which an unprivileged user's PATH often lacks.
func addSbin() {
	path := os.Getenv("PATH")
	for _, dir := range []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} {
		if !strings.Contains(":"+path+":", ":"+dir+":") {
			path += ":" + dir
		}
	}
	_ = os.Setenv("PATH", path)
}

// ensurePrograms installs missing programs if it has the permissions. Otherwise its error lists the packages to install.
func ensurePrograms(groups ...string) error {
	programs := programsOf(groups...)
	missing := missingPrograms(programs)
	if len(missing) == 0 {
		return nil
	}
	if !canInstall() {
		return userErrorf("%s", installAdvice(missing))
	}
	return withLock("packages", func() error {
		// Another lab may have installed them in the meantime.
		if missing = missingPrograms(programs); len(missing) == 0 {
			return nil
		}
		packages := packageNames(missing, func(p program) string { return p.debian })
		notice("installing %s", strings.Join(packages, " "))
		if aptInstall(packages) == nil {
			return nil
		}
		if out, err := exec.Command("apt-get", "update").CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get update: %w\n%s", err, out)
		}
		return aptInstall(packages)
	})
}

func (p program) installed() bool {
	_, err := exec.LookPath(p.name)
	if filepath.IsAbs(p.name) {
		_, err = os.Stat(p.name)
	}
	return err == nil
}

func missingPrograms(programs []program) []program {
	var missing []program
	for _, p := range programs {
		if !p.installed() {
			missing = append(missing, p)
		}
	}
	return missing
}

// canInstall reports whether this process is root on a Debian derivative, and not in a guest.
func canInstall() bool {
	_, apt := exec.LookPath("apt-get")
	_, debian := os.Stat("/etc/debian_version")
	return os.Geteuid() == 0 && apt == nil && debian == nil
}

func aptInstall(packages []string) error {
	args := append([]string{"install", "-y", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300"}, packages...)
	cmd := exec.Command("apt-get", args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("apt-get install %s: %w\n%s", strings.Join(packages, " "), err, out)
	}
	return nil
}

func installAdvice(missing []program) string {
	names := packageNames(missing, func(p program) string { return filepath.Base(p.name) })
	line := func(command string, of func(program) string) string {
		return "\n  " + command + " " + strings.Join(packageNames(missing, of), " ")
	}
	return "not found: " + strings.Join(names, ", ") + ". Install with one of" +
		line("Debian, Ubuntu: apt-get install", func(p program) string { return p.debian }) +
		line("Fedora:         dnf install", func(p program) string { return p.fedora }) +
		line("Arch:           pacman -S", func(p program) string { return p.arch })
}

// packageNames lists each package once.
func packageNames(programs []program, of func(program) string) []string {
	var names []string
	seen := map[string]bool{}
	for _, p := range programs {
		if name := of(p); !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
	}
	return names
}
