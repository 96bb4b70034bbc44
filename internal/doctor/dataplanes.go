package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
)

const (
	cilium    = "cilium-agent"
	ovn       = "ovnkube"
	k3sServer = "k3s-server"
	k3sAgent  = "k3s-agent"
	pinned    = "pinned eBPF maps"
)

// watched lists programs that serve Services in some configurations, or that manage the node's network interfaces.
var watched = []string{cilium, ovn, k3sServer, k3sAgent, "antrea-agent", networkManager, networkd}

// serviceMaps are name prefixes of pinned eBPF maps that exist only if a network plugin replaces kube-proxy.
var serviceMaps = []string{"cilium_nodeport_neigh", "cali_v4_nat_", "cali_v6_nat_"}

// readDataPlanes looks for eBPF programs and maps that redirect connections before they reach IPVS, and reads the
// settings of K3s.
func (f *Facts) readDataPlanes(h reader) {
	n, err := h.ConnectPrograms()
	if err != nil {
		f.unread("eBPF programs on connect", err)
	}
	f.ConnectPrograms = n
	if f.Container {
		f.unread(pinned, errHostFiles)
	}
	for _, name := range h.mayList("/sys/fs/bpf/tc/globals", pinned) {
		if slices.ContainsFunc(serviceMaps, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			f.BPFMaps = append(f.BPFMaps, name)
		}
	}
	for _, p := range f.Programs {
		if p.name != k3sServer {
			continue
		}
		settings := []string{}
		for _, file := range []string{"/proc/" + p.pid + "/cmdline", "/etc/rancher/k3s/config.yaml", "/etc/systemd/system/k3s.service"} {
			text, _ := h.may(file, "settings of K3s")
			settings = append(settings, text)
		}
		settings = append(settings, h.mayReadAll("settings of K3s", ".yaml", "/etc/rancher/k3s/config.yaml.d")...)
		f.K3sProxyOff = slices.ContainsFunc(settings, turnsProxyOff)
	}
}

// turnsProxyOff reports whether K3s runs with disable-kube-proxy, set by a flag or in its configuration file.
func turnsProxyOff(settings string) bool {
	for line := range strings.Lines(settings) {
		if strings.HasPrefix(strings.TrimSpace(line), "#") {
			continue
		}
		if _, value, found := strings.Cut(line, "disable-kube-proxy"); found {
			return !strings.HasPrefix(strings.TrimLeft(value, "=: '\""), "false")
		}
	}
	return false
}

// running returns the description of a running program, or "" if the program is not running.
func (f *Facts) running(name string) string {
	for _, p := range f.Programs {
		if p.name == name {
			return p.String()
		}
	}
	return ""
}

// serving returns the evidence that another program serves Services through eBPF, Open vSwitch or an embedded
// kube-proxy.
func (f *Facts) serving() (serves []string) {
	if f.ConnectPrograms > 0 {
		serves = append(serves, number(f.ConnectPrograms, "eBPF program")+" may redirect the connections of processes (`bpftool cgroup tree` shows them)")
	}
	if len(f.BPFMaps) > 0 {
		serves = append(serves, fmt.Sprintf("eBPF maps for Services in /sys/fs/bpf/tc/globals: %s", strings.Join(examples(f.BPFMaps), " ")))
	}
	if p := f.running(ovn); p != "" {
		serves = append(serves, p+" serves Services in Open vSwitch")
	} else if i, exists := f.named("ovn-k8s-mp0"); exists && i.Up {
		serves = append(serves, "the interface ovn-k8s-mp0 of OVN-Kubernetes, which serves Services in Open vSwitch, is up")
	}
	if p := f.running(k3sServer); p != "" && !f.K3sProxyOff {
		serves = append(serves, p+" runs an embedded kube-proxy; its settings do not disable it (disable-kube-proxy)")
	}
	return serves
}

// able returns the programs that could serve Services.
func (f *Facts) able() (may []string) {
	for _, name := range []string{cilium, "antrea-agent", k3sAgent} {
		if p := f.running(name); p != "" {
			may = append(may, p)
		}
	}
	for _, name := range f.Uplinks {
		if i, known := f.named(name); known && i.XDP {
			may = append(may, "an eBPF program (XDP) processes the packets of "+name+" first")
		}
	}
	return may
}

// checkDataPlanes finds programs other than IPVS that handle the traffic of Services.
func checkDataPlanes(f Facts) []finding.Finding {
	serves, may := f.serving(), f.able()
	switch {
	case len(serves) > 0 && f.setting("serviceProxyName", "") != "":
		return finding.One(finding.Notice, "other data plane", "another program serves its own Services on this node, as configured with service-proxy-name", append(serves, may...),
			"nothing to do")
	case len(serves) > 0:
		return finding.One(finding.Warning, "other data plane", "another program serves Services on this node; connections that it redirects never reach IPVS", append(serves, may...),
			"let only one program serve Services: disable the other one (Cilium: kubeProxyReplacement: false; Calico: bpfEnabled: false; K3s: disable-kube-proxy: true), "+
				"or remove kube-ipvs from this node; see docs/when-not-to-use.md")
	case len(may) > 0:
		return finding.One(finding.Notice, "other data plane", "a program that can serve Services is running on this node; there is no evidence that it does", may,
			"nothing to do, unless connections to Services do not appear in `kube-ipvs conns`")
	}
	return nil
}
