package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// emulator is a QEMU binary and the arguments that its location requires.
type emulator struct {
	program string
	args    []string
	version string
}

// goodQEMU is the oldest major version with fast emulation. Debian 12's version 7.2 needs 50% more CPU.
const goodQEMU = 10

// findEmulator returns the host's QEMU. If that QEMU is slow and Debian has a newer version for this release,
// findEmulator unpacks the newer version into the cache.
func findEmulator() (emulator, error) {
	installed, err := emulatorAt("qemu-system-x86_64")
	if err != nil || installed.major() >= goodQEMU {
		return installed, err
	}
	newer, err := backportedQEMU()
	if err != nil {
		notice("using QEMU %s, which is slow; a newer one is unavailable: %v", installed.version, err)
		return installed, nil
	}
	return newer, nil
}

func emulatorAt(program string, args ...string) (emulator, error) {
	out, err := exec.Command(program, "--version").Output()
	if err != nil {
		return emulator{}, fmt.Errorf("%s --version: %w", program, err)
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return emulator{program, args, strings.TrimPrefix(line, "QEMU emulator version ")}, nil
}

func (e emulator) major() int {
	n, _ := strconv.Atoi(regexp.MustCompile(`^[0-9]*`).FindString(e.version))
	return n
}

// backportedQEMU unpacks QEMU from the backports of the host's Debian release. It uses the libraries and BIOS of the
// installed QEMU.
func backportedQEMU() (emulator, error) {
	suite, err := debianCodename()
	if err != nil {
		return emulator{}, err
	}
	suite += "-backports"
	dir, err := cacheDir("qemu")
	if err != nil {
		return emulator{}, err
	}
	tree := filepath.Join(dir, suite)
	err = withLock("qemu", func() error {
		if _, err := os.Stat(tree); err == nil {
			return nil
		}
		notice("fetching QEMU from Debian %s (once, 13 MB)", suite)
		apt, err := updatedApt(suite)
		if err != nil {
			return err
		}
		return apt.UnpackWhole(tree, []string{"qemu-system-x86", "qemu-system-common", "qemu-system-data"}, runsThere)
	})
	if err != nil {
		return emulator{}, err
	}
	return unpackedQEMU(tree)
}

func unpackedQEMU(tree string) (emulator, error) {
	return emulatorAt(filepath.Join(tree, "usr/bin/qemu-system-x86_64"),
		"-L", filepath.Join(tree, "usr/share/qemu"), "-L", "/usr/share/seabios")
}

func runsThere(tree string) error {
	_, err := unpackedQEMU(tree)
	return err
}

// debianCodename returns a release name such as bookworm.
func debianCodename() (string, error) {
	text, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return "", err
	}
	values := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		values[name] = strings.Trim(value, `"`)
	}
	if values["ID"] != "debian" || values["VERSION_CODENAME"] == "" {
		return "", fmt.Errorf("%s is not a Debian release with backports", values["PRETTY_NAME"])
	}
	return values["VERSION_CODENAME"], nil
}
