package debian

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cachedir"
)

const firewallSuite = "bookworm"

// Firewalls returns a root directory with ufw, firewalld and docker, which FetchFirewalls has unpacked.
func Firewalls(root string) (string, error) {
	tree := cachedir.Path(root, "firewalls", firewallSuite)
	if _, err := os.Stat(tree); err != nil {
		return "", fmt.Errorf("%w; use make firewalls-test, which unpacks it", err)
	}
	return tree, nil
}

// FetchFirewalls downloads and unpacks ufw, firewalld, docker and everything that they need. It also does those parts of
// the packages' installation scripts that the programs depend on.
func FetchFirewalls(root, architecture string) error {
	tree := cachedir.Path(root, "firewalls", firewallSuite)
	if _, err := os.Stat(tree); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	apt, err := New(tree+".apt", firewallSuite, architecture)
	if err != nil {
		return err
	}
	packages, err := apt.installed("ufw", "firewalld", "docker.io", "coreutils", "dash", "grep", "procps")
	if err != nil {
		return err
	}
	return apt.UnpackWhole(tree, packages, func(unfinished string) error {
		configure := exec.Command("sh", "-ec", `
			for f in iptables ip6tables; do for use in "" -save -restore; do ln -sf $f-nft$use usr/sbin/$f$use; done; done
			cp usr/share/ufw/iptables/* usr/share/ufw/before.init usr/share/ufw/after.init usr/share/ufw/ufw.conf etc/ufw/
			mkdir -p dev etc/ssl/certs proc root run/dbus sys tmp var/log
			for user in root:x:0 messagebus:x:101; do echo $user:0::/:/bin/sh; done >etc/passwd
			for group in root:x:0: messagebus:x:101: docker:x:102:; do echo $group; done >etc/group`)
		configure.Dir = unfinished
		if out, err := configure.CombinedOutput(); err != nil {
			return fmt.Errorf("configure the packages: %w\n%s", err, out)
		}
		return os.RemoveAll(apt.dir)
	})
}

// installed lists all packages that an installation of some packages would unpack on an empty machine.
func (a Apt) installed(packages ...string) ([]string, error) {
	out, err := a.command("apt-get", append([]string{"-s", "--no-install-recommends", "install"}, packages...)...).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("apt-get -s install %s: %w\n%s", strings.Join(packages, " "), err, out)
	}
	var all []string
	for line := range strings.Lines(string(out)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "Inst" {
			all = append(all, fields[1])
		}
	}
	return all, nil
}
