package realcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/upstream"
)

// toolbox contains the programs, besides agnhost, that the pods of Kubernetes' tests run. The tests need bash, a
// shell with builtin printf and kill (dash), the options of OpenBSD's nc, and a wget that supports timeouts. The
// wget in Debian 12's busybox crashes.
var toolbox = map[string]string{
	"/bin/bash": "bash", "/bin/sh": "dash", "/bin/ip": "ip", "/bin/ss": "ss",
	"/bin/nc": "nc.openbsd", "/usr/bin/curl": "curl", "/usr/bin/dig": "dig", "/usr/bin/getent": "getent",
	"/bin/wget": "wget", "/usr/sbin/conntrack": "conntrack",
}

// Kubernetes' tests run servers and clients in agnhost's image.
func agnhostRoot(ctx context.Context, checkout, root string) error {
	if err := makeFolders(root, "bin", "usr/bin", "etc", "uploads", "proc", "sys", "dev", "home", "root", "var"); err != nil {
		return err
	}
	if err := makeTmp(root); err != nil {
		return err
	}
	if err := busybox(root); err != nil {
		return err
	}
	for place, program := range toolbox {
		if err := installProgram(root, place, program); err != nil {
			return err
		}
	}
	for name, text := range map[string]string{
		"etc/passwd": "root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n", "etc/group": "root:x:0:\nnogroup:x:65534:\n",
		"etc/nsswitch.conf": "hosts: files dns\n",
	} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	if err := certificates(ctx, checkout, root); err != nil {
		return err
	}
	// A DNS test starts its own server with this program.
	return errors.Join(installUpstream(checkout, root, "/agnhost", upstream.Agnhost), installUpstream(checkout, root, "/coredns", upstream.CoreDNS))
}

// kubeProxyRoot adds kube-proxy and ipset to the agent's image.
func kubeProxyRoot(checkout, agent, root string) error {
	if err := os.CopyFS(root, os.DirFS(agent)); err != nil {
		return err
	}
	for _, program := range []string{"iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore"} {
		if err := os.Symlink("xtables-nft-multi", filepath.Join(root, "usr/sbin", program)); err != nil {
			return err
		}
	}
	if err := installProgram(root, "/usr/sbin/ipset", "ipset"); err != nil {
		return err
	}
	protocols := "tcp 6 TCP\nudp 17 UDP\nsctp 132 SCTP\n" // ipset looks up these names
	if err := os.WriteFile(filepath.Join(root, "etc/protocols"), []byte(protocols), 0o644); err != nil {
		return err
	}
	return installUpstream(checkout, root, "/usr/local/bin/kube-proxy", upstream.KubeProxy)
}

func makeFolders(root string, names ...string) error {
	for _, name := range names {
		if err := os.MkdirAll(filepath.Join(root, name), 0o755); err != nil {
			return err
		}
	}
	return nil
}

func makeTmp(root string) error {
	if err := makeFolders(root, "tmp"); err != nil {
		return err
	}
	return os.Chmod(filepath.Join(root, "tmp"), 0o777|os.ModeSticky)
}

func busybox(root string) error {
	if err := installProgram(root, "/bin/busybox", "busybox"); err != nil {
		return err
	}
	list, err := exec.Command("busybox", "--list").Output()
	if err != nil {
		return fmt.Errorf("busybox --list: %w", err)
	}
	for _, name := range strings.Fields(string(list)) {
		if name == "busybox" {
			continue
		}
		if err := os.Symlink("busybox", filepath.Join(root, "bin", name)); err != nil {
			return err
		}
	}
	return nil
}

var libraryPath = regexp.MustCompile(`(?m)^(?:.* => |\s*)(/\S+) \(`)

// installProgram copies a host program and its libraries.
func installProgram(root, place, program string) error {
	path, err := exec.LookPath(program)
	if err != nil {
		return err
	}
	if err := copyFile(path, filepath.Join(root, place)); err != nil {
		return err
	}
	libraries, _ := exec.Command("ldd", path).Output() // ldd fails for a static program
	for _, match := range libraryPath.FindAllStringSubmatch(string(libraries), -1) {
		if err := copyFile(match[1], filepath.Join(root, match[1])); err != nil {
			return err
		}
	}
	return nil
}

// copyFile also replaces a link.
func copyFile(from, to string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o755)
}

func certificates(ctx context.Context, checkout, root string) error {
	source, err := upstream.Source(ctx, checkout, upstream.Agnhost)
	if err != nil {
		return err
	}
	for _, name := range []string{"localhost.crt", "localhost.key"} {
		if err := copyFile(filepath.Join(source, "test/images/agnhost/porter", name), filepath.Join(root, name)); err != nil {
			return err
		}
	}
	return nil
}

func installUpstream(checkout, root, place, program string) error {
	path, err := upstream.Path(checkout, program)
	if err != nil {
		return err
	}
	return copyFile(path, filepath.Join(root, place))
}
