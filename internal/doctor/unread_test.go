package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// failing is a host on which one read fails. It records all reads.
type failing struct {
	*node
	read string
	err  error
	all  []string
}

func (h *failing) fails(kind, what string) error {
	name := strings.TrimSpace(kind + " " + what)
	if !slices.Contains(h.all, name) {
		h.all = append(h.all, name)
	}
	if name == h.read {
		return h.err
	}
	return nil
}

func (h *failing) ReadFile(name string) ([]byte, error) {
	if err := h.fails("file", name); err != nil {
		return nil, err
	}
	return h.node.ReadFile(name)
}

func (h *failing) Tail(name string) ([]byte, error) {
	if err := h.fails("log", name); err != nil {
		return nil, err
	}
	return h.node.Tail(name)
}

func (h *failing) Names(dir string) ([]string, error) {
	if err := h.fails("directory", dir); err != nil {
		return nil, err
	}
	return h.node.Names(dir)
}

func (h *failing) Get(url string) (int, string, error) {
	if err := h.fails("URL", url); err != nil {
		return 0, "", err
	}
	return h.node.Get(url)
}

func (h *failing) Leftovers() ([]kernel.Leftover, error) {
	if err := h.fails("leftovers", ""); err != nil {
		return nil, err
	}
	return h.node.Leftovers()
}

func (h *failing) ClockSynchronized() (bool, error) {
	if err := h.fails("clock", ""); err != nil {
		return false, err
	}
	return h.node.ClockSynchronized()
}

func (h *failing) Interfaces() ([]kernel.Interface, error) {
	if err := h.fails("interfaces", ""); err != nil {
		return nil, err
	}
	return h.node.Interfaces()
}

func (h *failing) ServerCertificates(address, name string) ([][]byte, error) {
	if err := h.fails("handshake", address); err != nil {
		return nil, err
	}
	return h.node.ServerCertificates(address, name)
}

func (h *failing) KernelLog() (string, error) {
	if err := h.fails("kernel log", ""); err != nil {
		return "", err
	}
	return h.node.KernelLog()
}

func (h *failing) ConnectPrograms() (int, error) {
	if err := h.fails("connect programs", ""); err != nil {
		return 0, err
	}
	return h.node.ConnectPrograms()
}

func (h *failing) Neighbors() ([]kernel.Neighbor, error) {
	if err := h.fails("neighbors", ""); err != nil {
		return nil, err
	}
	return h.node.Neighbors()
}

func (h *failing) Queues() ([]kernel.Queue, error) {
	if err := h.fails("queues", ""); err != nil {
		return nil, err
	}
	return h.node.Queues()
}

func examineFailing(spoil func(*node), read string, err error) (report Report, all []string) {
	n := well()
	spoil(n)
	h := &failing{node: n, read: read, err: err}
	n.Count(h)
	n.Read(h)
	return Examine(n.Facts), h.all
}

// surrounded contains nodes that together make doctor read every fact.
var surrounded = map[string]func(*node){
	"well": func(*node) {},
	"everything": func(n *node) {
		n.run(k3sServer)
		n.files["/etc/rancher/k3s/config.yaml"] = "disable-kube-proxy: true"
		n.files["/proc/701/comm"], n.files["/proc/702/comm"] = networkManager, networkd
		n.files["/sys/module/apparmor/parameters/enabled"] = "Y"
		n.files["/etc/NetworkManager/conf.d/k8s.conf"] = "unmanaged-devices=interface-name:kube-ipvs0"
		n.files["/usr/lib/systemd/network/80-wired.network"] = "[Match]\nName=eth0\n"
		n.files["/var/log/audit/audit.log"] = ""
		n.onlyIPv6("00450003")
		delete(n.files, "/proc/net/stat/arp_cache")
		n.files["/proc/net/arp"] = "header\n"
	},
	"kubeconfig": func(n *node) {
		n.kubeconfig("{server: 'https://192.0.2.10:6443', certificate-authority: ca.pem}", "{client-certificate: agent.pem, tokenFile: token}")
		ca := authority("ca", noon.AddDate(10, 0, 0))
		n.files["/etc/ca.pem"], n.files["/etc/agent.pem"], n.files["/etc/token"] = string(ca.pem), string(ca.issue("agent", noon.AddDate(1, 0, 0)).pem), "abc"
		n.serve(ca.issue("kubernetes", noon.AddDate(1, 0, 0)))
	},
	"no agent": func(n *node) { n.View, n.Silence = nil, "no agent" },
}

// TestNothingIsSilent: if doctor fails to read any fact, the report lists it.
func TestNothingIsSilent(t *testing.T) {
	boom := errors.New("boom")
	for name, spoil := range surrounded {
		_, all := examineFailing(spoil, "", nil)
		if len(all) < 20 {
			t.Fatalf("%s: doctor read only %d facts: %q", name, len(all), all)
		}
		for _, read := range all {
			report, _ := examineFailing(spoil, read, boom)
			told := slices.ContainsFunc(report.Unchecked, func(u string) bool { return strings.Contains(u, "boom") || strings.Contains(u, "not visible") })
			told = told || slices.ContainsFunc(report.Findings, func(f finding.Finding) bool { return strings.Contains(f.String(), "boom") })
			if !told {
				t.Errorf("%s: %s fails, but the report does not list it: %+v", name, read, report)
			}
		}
	}
}

// mayLack lists the files that a host may lack, with the reasons.
var mayLack = map[string]string{
	"/proc/modules": "a kernel without modules", "/proc/net/ip_vs": "a kernel without IPVS", "/proc/net/ipv6_route": "a kernel without IPv6",
	"/proc/net/stat/*": "another network namespace", "/proc/net/snmp6": "a kernel without IPv6",
	"/proc/*/comm": "a process has ended", "/proc/*/cmdline": "a process has ended", "/proc/sys/*": "a kernel without the feature",
	"/etc/modules": "most systems", "/etc/modules-load.d/*": "removed meanwhile", "/sys/module/apparmor/*": "no AppArmor", "/sys/fs/selinux/*": "no SELinux",
	"/sys/fs/bpf/*": "no pinned maps", "/etc/rancher/k3s/*": "flags only", "/etc/systemd/system/*": "another service manager",
	"/etc/NetworkManager/*": "no such file", "/run/NetworkManager/*": "no such device", "/usr/lib/NetworkManager/*": "no such file",
	"/run/systemd/*": "no such device", "/etc/systemd/network*": "no such file", "/usr/lib/systemd/network*": "no such file", "/var/log/audit/*": "no auditd",
	"/usr/lib/modules-load.d*": "most systems", "/run/modules-load.d*": "most systems", "/etc/modules-load.d": "most systems",
}

// TestMissingFiles: if a file that every host has is missing, the report lists it.
func TestMissingFiles(t *testing.T) {
	for name, spoil := range surrounded {
		before, all := examineFailing(spoil, "", nil)
		for _, read := range all {
			kind, file, _ := strings.Cut(read, " ")
			if kind != "file" && kind != "directory" || maySilentlyLack(file) {
				continue
			}
			report, _ := examineFailing(spoil, read, fmt.Errorf("open %s: %w", file, fs.ErrNotExist))
			if slices.Equal(report.Unchecked, before.Unchecked) && len(report.Findings) == len(before.Findings) {
				t.Errorf("%s: %s is missing, but the report does not list it", name, file)
			}
		}
	}
}

func maySilentlyLack(file string) bool {
	for pattern := range mayLack {
		prefix, suffix, any := strings.Cut(pattern, "*")
		if file == pattern || any && strings.HasPrefix(file, prefix) && strings.HasSuffix(file, suffix) && file != "/proc/sys/net/ipv4/ip_forward" {
			return true
		}
	}
	return false
}

// TestRulesUnread: the report lists kernel state that could not be read.
func TestRulesUnread(t *testing.T) {
	n := well()
	n.Unread = []string{"rules: boom"}
	n.Read(n)
	var text strings.Builder
	if err := Examine(n.Facts).Print(&text); err != nil || !strings.Contains(text.String(), "not checked: rules: boom\nverdict: well, except for what was not checked\n") {
		t.Error(text.String(), err)
	}
}
