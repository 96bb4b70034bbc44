// Package debian extracts files from Debian packages without installing them.
package debian

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// keyring contains the signing keys of all current suites.
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// ErrNotHere is returned on machines where apt cannot fetch Debian packages.
var ErrNotHere = errors.New("this machine cannot fetch Debian packages")

// Apt is an apt configuration with its own sources and state. It still reads /etc/apt/apt.conf.d and auth.conf.d,
// which contain proxies and passwords.
type Apt struct{ dir, architecture string }

// New creates an Apt in a directory. It uses the mirror of the system's apt.
func New(dir, suite, architecture string) (Apt, error) {
	apt := Apt{dir, architecture}
	if err := apt.configure(suite); err != nil {
		return Apt{}, err
	}
	return apt, apt.update()
}

func (a Apt) configure(suite string) error {
	dir := a.dir
	for _, sub := range []string{"state/lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return err
		}
	}
	targets, err := exec.Command("apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)",
		"Created-By: Packages").Output()
	if err != nil {
		return fmt.Errorf("apt-get indextargets: %w", err)
	}
	list, err := sources(string(targets), suite)
	if err != nil {
		return err
	}
	if _, err := os.Stat(keyring); err != nil {
		return fmt.Errorf("%w: %s is missing; use apt-get install debian-archive-keyring", ErrNotHere, keyring)
	}
	if err := os.WriteFile(filepath.Join(dir, "sources.list"), []byte(list), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "status"), nil, 0o644)
}

// sources returns a sources.list for the suite. Each line of targets, the system's apt sources, contains a URI, a
// suite and a component.
func sources(targets, suite string) (string, error) {
	archive, security := "", ""
	for line := range strings.Lines(targets) {
		fields := strings.Fields(line)
		if len(fields) != 3 || fields[2] != "main" {
			continue
		}
		uri := strings.TrimSuffix(fields[0], "/") + "/"
		switch {
		case strings.HasSuffix(uri, "/debian-security/"):
			security = uri
		case strings.HasSuffix(uri, "/debian/") && archive == "":
			archive = uri
		}
	}
	if archive == "" {
		return "", fmt.Errorf("%w: apt has no Debian source", ErrNotHere)
	}
	source := func(uri, suite string) string {
		return fmt.Sprintf("deb [signed-by=%s] %s %s main\n", keyring, uri, suite)
	}
	list := source(archive, suite)
	// Only a stable release has a security suite.
	if security != "" && !strings.Contains(suite, "-") && suite != "sid" {
		list += source(security, suite+"-security")
	}
	return list, nil
}

func (a Apt) command(tool string, args ...string) *exec.Cmd {
	set := []string{
		"Dir::Etc::sourcelist=" + filepath.Join(a.dir, "sources.list"),
		"Dir::Etc::sourceparts=/dev/null",
		"Dir::Etc::preferences=/dev/null",
		"Dir::Etc::preferencesparts=/dev/null",
		"Dir::State=" + filepath.Join(a.dir, "state"),
		"Dir::State::status=" + filepath.Join(a.dir, "status"),
		"Dir::Cache=" + filepath.Join(a.dir, "cache"),
		"Acquire::Languages=none",
		"Acquire::Retries=3",
		"APT::Architecture=" + a.architecture,
		"APT::Architectures=" + a.architecture,
		// The download user _apt cannot read a private directory.
		"APT::Sandbox::User=root",
	}
	var options []string
	for _, s := range set {
		options = append(options, "-o", s)
	}
	return exec.Command(tool, append(options, args...)...)
}

func (a Apt) update() error {
	if out, err := a.command("apt-get", "-qq", "update").CombinedOutput(); err != nil {
		return fmt.Errorf("apt-get update with %s: %w\n%s", filepath.Join(a.dir, "sources.list"), err, out)
	}
	return nil
}

// Depends lists the direct dependencies of a package.
func (a Apt) Depends(pkg string) ([]string, error) {
	out, err := a.command("apt-cache", "--important", "depends", pkg).Output()
	if err != nil {
		return nil, fmt.Errorf("apt-cache depends %s: %w", pkg, err)
	}
	var names []string
	for line := range strings.Lines(string(out)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: "); ok {
			names = append(names, name)
		}
	}
	return names, nil
}

// Closure lists a package and all its dependencies.
func (a Apt) Closure(pkg string) ([]string, error) {
	all := []string{pkg}
	for i := 0; i < len(all); i++ {
		depends, err := a.Depends(all[i])
		if err != nil {
			return nil, err
		}
		for _, name := range depends {
			if !slices.Contains(all, name) {
				all = append(all, name)
			}
		}
	}
	return all, nil
}

// Unpack downloads packages and extracts them into dir without installing them.
func (a Apt) Unpack(dir string, packages []string) error {
	debs := filepath.Join(a.dir, "debs")
	if err := os.MkdirAll(debs, 0o755); err != nil {
		return err
	}
	defer os.RemoveAll(debs)
	download := a.command("apt-get", append([]string{"-q", "download"}, packages...)...)
	download.Dir = debs
	if out, err := download.CombinedOutput(); err != nil {
		return fmt.Errorf("apt-get download %s: %w\n%s", strings.Join(packages, " "), err, out)
	}
	files, err := filepath.Glob(filepath.Join(debs, "*.deb"))
	if err != nil {
		return err
	}
	for _, file := range files {
		if out, err := exec.Command("dpkg", "-x", file, dir).CombinedOutput(); err != nil {
			return fmt.Errorf("dpkg -x %s: %w\n%s", file, err, out)
		}
	}
	return nil
}

// UnpackWhole unpacks packages into tree. It creates tree atomically once finish has succeeded.
func (a Apt) UnpackWhole(tree string, packages []string, finish func(unfinished string) error) error {
	unfinished := tree + ".unfinished"
	if err := os.RemoveAll(unfinished); err != nil {
		return err
	}
	if err := a.Unpack(unfinished, packages); err != nil {
		return err
	}
	if err := finish(unfinished); err != nil {
		return err
	}
	return os.Rename(unfinished, tree)
}

// Version returns the version of a package that Unpack would use.
func (a Apt) Version(pkg string) (string, error) { return a.field(pkg, "Version") }

// Checksum returns the SHA-256 checksum of the package file that Unpack would use.
func (a Apt) Checksum(pkg string) (string, error) { return a.field(pkg, "SHA256") }

func (a Apt) field(pkg, name string) (string, error) {
	out, err := a.command("apt-cache", "show", "--no-all-versions", pkg).Output()
	if err != nil {
		return "", fmt.Errorf("apt-cache show %s: %w", pkg, err)
	}
	for line := range strings.Lines(string(out)) {
		if value, ok := strings.CutPrefix(line, name+": "); ok {
			return strings.TrimSpace(value), nil
		}
	}
	return "", fmt.Errorf("apt-cache show %s: no field %s", pkg, name)
}
