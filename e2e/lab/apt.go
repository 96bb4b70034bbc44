package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// debianKeyring has the signing keys of every suite that the lab uses.
const debianKeyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// privateApt is an apt with its own sources and state, so that the system's stay as they are. It still reads
// /etc/apt/apt.conf.d and auth.conf.d, which hold proxies and passwords.
type privateApt struct{ dir string }

// newPrivateApt writes the sources for a Debian suite, at the mirror the system's apt uses.
func newPrivateApt(dir, suite string) (privateApt, error) {
	for _, sub := range []string{"state/lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return privateApt{}, err
		}
	}
	targets, err := exec.Command("apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)",
		"Created-By: Packages").Output()
	if err != nil {
		return privateApt{}, fmt.Errorf("apt-get indextargets: %w", err)
	}
	sources, err := debianSources(string(targets), suite)
	if err != nil {
		return privateApt{}, err
	}
	if _, err := os.Stat(debianKeyring); err != nil {
		return privateApt{}, userErrorf("%s is missing: apt-get install debian-archive-keyring", debianKeyring)
	}
	if err := os.WriteFile(filepath.Join(dir, "sources.list"), []byte(sources), 0o644); err != nil {
		return privateApt{}, err
	}
	return privateApt{dir}, os.WriteFile(filepath.Join(dir, "status"), nil, 0o644)
}

// debianSources is a sources.list for the suite. targets is what apt is configured with: lines of URI, suite and
// component. The archive and the security archive come from there.
func debianSources(targets, suite string) (string, error) {
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
		return "", userErrorf("apt has no source of Debian packages to take a kernel from: give one by KERNEL=PATH, " +
			"such as KERNEL=/boot/vmlinuz-$(uname -r)")
	}
	source := func(uri, suite string) string {
		return fmt.Sprintf("deb [signed-by=%s] %s %s main\n", debianKeyring, uri, suite)
	}
	list := source(archive, suite)
	// Only a stable release has a security suite, and only there does it have the newest kernel.
	if security != "" && !strings.Contains(suite, "-") && suite != "sid" {
		list += source(security, suite+"-security")
	}
	return list, nil
}

// command prepares an apt tool in the private folder.
func (a privateApt) command(tool string, args ...string) *exec.Cmd {
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
		"APT::Architecture=amd64",
		// The download user _apt cannot see into a private repository folder.
		"APT::Sandbox::User=root",
	}
	var options []string
	for _, s := range set {
		options = append(options, "-o", s)
	}
	return exec.Command(tool, append(options, args...)...)
}

func (a privateApt) update() error {
	if out, err := a.command("apt-get", "-qq", "update").CombinedOutput(); err != nil {
		return fmt.Errorf("apt-get update with %s: %w\n%s", filepath.Join(a.dir, "sources.list"), err, out)
	}
	return nil
}

// depends lists what a package depends on directly.
func (a privateApt) depends(pkg string) ([]string, error) {
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

// unpack downloads packages and extracts them below dir, without installing anything.
func (a privateApt) unpack(dir string, packages []string) error {
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

// updatedApt is a private apt that knows the suite's packages.
func updatedApt(suite string) (privateApt, error) {
	dir, err := cacheDir("apt", suite)
	if err != nil {
		return privateApt{}, err
	}
	apt, err := newPrivateApt(dir, suite)
	if err != nil {
		return privateApt{}, err
	}
	return apt, apt.update()
}

// unpackWhole unpacks packages into tree, which appears only when it is complete and finish has accepted it.
func (a privateApt) unpackWhole(tree string, packages []string, finish func(unfinished string) error) error {
	unfinished := tree + ".unfinished"
	if err := os.RemoveAll(unfinished); err != nil {
		return err
	}
	if err := a.unpack(unfinished, packages); err != nil {
		return err
	}
	if err := finish(unfinished); err != nil {
		return err
	}
	return os.Rename(unfinished, tree)
}
