package doctor

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// programs lists defects that other programs cause.
var programs = []breakage{
	// other data planes
	{"Cilium that replaces kube-proxy", func(_ *testing.T, n *node) { n.run(cilium); n.programs = 2 }, finding.Warning,
		[]string{"cilium-agent (process 700)", "2 eBPF programs", "kubeProxyReplacement: false"}},
	{"Cilium that replaces kube-proxy without connect programs", func(_ *testing.T, n *node) {
		n.run(cilium)
		n.files["/sys/fs/bpf/tc/globals/cilium_nodeport_neigh4"] = ""
	}, finding.Warning, []string{"cilium_nodeport_neigh4"}},
	{"Cilium beside a proxy", func(_ *testing.T, n *node) {
		n.run(cilium)
		n.files["/sys/fs/bpf/tc/globals/cilium_lb4_services_v2"] = ""
	}, finding.Notice, []string{"there is no evidence that it does", "cilium-agent"}},
	{"Calico's eBPF", func(_ *testing.T, n *node) { n.files["/sys/fs/bpf/tc/globals/cali_v4_nat_fe3"] = "" }, finding.Warning, []string{"cali_v4_nat_fe3"}},
	{"a program that doctor does not know", func(_ *testing.T, n *node) { n.programs = 1 }, finding.Warning, []string{"1 eBPF program may redirect", "bpftool cgroup tree"}},
	{"eBPF before IPVS at the uplink", func(_ *testing.T, n *node) {
		n.link(kernel.Interface{Name: "eth0", Kind: "device", MTU: 1500, Up: true, XDP: true})
	}, finding.Notice,
		[]string{"XDP", "eth0"}},
	{"OVN-Kubernetes", func(_ *testing.T, n *node) { n.run(ovn) }, finding.Warning, []string{"ovnkube (process 700)", "Open vSwitch"}},
	{"interface of OVN-Kubernetes", func(_ *testing.T, n *node) {
		n.link(kernel.Interface{Name: "ovn-k8s-mp0", Kind: "openvswitch", Up: true})
	}, finding.Warning,
		[]string{"ovn-k8s-mp0"}},
	{"K3s", func(_ *testing.T, n *node) { n.run(k3sServer) }, finding.Warning, []string{"k3s-server (process 700) runs an embedded kube-proxy", "disable-kube-proxy: true"}},
	{"K3s without a proxy", func(_ *testing.T, n *node) {
		n.run(k3sServer)
		n.files["/etc/rancher/k3s/config.yaml"] = "write-kubeconfig-mode: '0644'\ndisable-kube-proxy: true\n"
	}, "", nil},
	{"K3s with a flag that is off", func(_ *testing.T, n *node) {
		n.run(k3sServer)
		n.files["/proc/700/cmdline"] = "/usr/local/bin/k3s\x00server\x00--disable-kube-proxy=false"
	}, finding.Warning, []string{"k3s-server"}},
	{"K3s with the setting in a comment", func(_ *testing.T, n *node) {
		n.run(k3sServer)
		n.files["/etc/rancher/k3s/config.yaml"] = "# disable-kube-proxy: true\n"
	}, finding.Warning, []string{"k3s-server"}},
	{"agent of K3s", func(_ *testing.T, n *node) { n.run(k3sAgent) }, finding.Notice, []string{"k3s-agent (process 700)"}},
	{"other data plane, as configured", func(_ *testing.T, n *node) { n.run(ovn); n.set("serviceProxyName", "kube-ipvs") }, finding.Notice, []string{"service-proxy-name"}},
	{"kube-proxy on its own port", func(_ *testing.T, n *node) {
		n.set("metricsBindAddress", "127.0.0.1:9000")
		n.answers["http://127.0.0.1:9000/metrics"] = Answer{Status: 200}
		n.answers[kubeProxyMode] = Answer{Status: 200, Body: "iptables"}
	}, finding.Warning, []string{"another proxy is running", `/proxyMode answers "iptables"`}},

	// network services
	{"NetworkManager manages the device", func(_ *testing.T, n *node) {
		n.run(networkManager)
		n.files["/run/NetworkManager/devices/7"] = "[device]\nconnection-uuid=1\nmanaged=true\n"
	}, finding.Warning, []string{"kube-ipvs0", "managed=true in /run/NetworkManager/devices/7", "unmanaged-devices=interface-name:kube-ipvs0"}},
	{"NetworkManager leaves the device alone", func(_ *testing.T, n *node) {
		n.run(networkManager)
		n.files["/run/NetworkManager/devices/7"] = "[device]\nmanaged=false\n"
	}, "", nil},
	{"NetworkManager without a word about the device", func(_ *testing.T, n *node) {
		n.run(networkManager)
		n.files["/etc/NetworkManager/conf.d/calico.conf"] = "[keyfile]\nunmanaged-devices=interface-name:cali*;interface-name:tunl*\n"
	}, finding.Notice, []string{"no unmanaged-devices"}},
	{"NetworkManager told by a pattern", func(_ *testing.T, n *node) {
		n.run(networkManager)
		n.files["/etc/NetworkManager/conf.d/k8s.conf"] = "[keyfile]\nunmanaged-devices+=interface-name:cali*;interface-name:kube-ipvs*\n"
	}, "", nil},
	{"systemd-networkd manages the device", func(_ *testing.T, n *node) {
		n.run(networkd)
		n.files["/run/systemd/netif/links/7"] = "ADMIN_STATE=configured\nOPER_STATE=routable\nNETWORK_FILE=/etc/systemd/network/zz-all.network\n"
	}, finding.Warning, []string{"ADMIN_STATE=configured", "zz-all.network", "Unmanaged=yes"}},
	{"systemd-networkd leaves the device alone", func(_ *testing.T, n *node) {
		n.run(networkd)
		n.files["/run/systemd/netif/links/7"] = "ADMIN_STATE=unmanaged\n"
		n.files["/etc/systemd/network/zz-all.network"] = "[Match]\nName=*\n[Network]\nDHCP=yes\n"
	}, "", nil},
	{"systemd-networkd will manage the device", func(_ *testing.T, n *node) {
		n.run(networkd)
		n.files["/etc/systemd/network/10-lan.network"] = "[Match]\nName=eth*\n[Network]\nDHCP=yes\n"
		n.files["/etc/systemd/network/zz-all.network"] = "[Match]\nName=*\n[Network]\nDHCP=yes\n"
	}, finding.Warning, []string{"zz-all.network matches kube-ipvs0"}},
	{"systemd-networkd with an exception", func(_ *testing.T, n *node) {
		n.run(networkd)
		n.files["/etc/systemd/network/00-kube-ipvs0.network"] = "[Match]\nName=kube-ipvs0\n[Link]\nUnmanaged=yes\n"
		n.files["/etc/systemd/network/zz-all.network"] = "[Match]\nType=ether\n[Network]\nDHCP=yes\n"
	}, "", nil},
	{"systemd-networkd with an exception in other words", func(_ *testing.T, n *node) {
		n.run(networkd)
		n.files["/etc/systemd/network/00-kube-ipvs0.network"] = "[Match]\nName=kube-ipvs0\n[Link]\nUnmanaged=true\n"
		n.files["/etc/systemd/network/zz-all.network"] = "[Match]\nType=ether\n[Network]\nDHCP=yes\n"
	}, "", nil},
	{"systemd-networkd with names that do not match", func(_ *testing.T, n *node) {
		n.run(networkd)
		n.files["/etc/systemd/network/zz-all.network"] = "[Match]\nName=!veth* lo\n[Network]\nDHCP=yes\n"
	}, finding.Warning, []string{"zz-all.network matches kube-ipvs0"}},
	{"systemd-networkd with hardware only", func(_ *testing.T, n *node) {
		n.run(networkd)
		n.files["/usr/lib/systemd/network/80-wired.network"] = "[Match]\nKind=!*\nType=ether\n[Network]\nDHCP=yes\n"
		n.files["/etc/systemd/network/10-mac.network"] = "[Match]\nMACAddress=00:11:22:33:44:55\nType=ether\n"
	}, "", nil},

	// security modules
	{"AppArmor denies", func(_ *testing.T, n *node) {
		n.files["/sys/module/apparmor/parameters/enabled"] = "Y\n"
		n.log = denied(noon, `apparmor="DENIED" operation="open" profile="cri-containerd.apparmor.d" name="/proc/sys/net/ipv4/vs/conntrack" pid=4711 comm="kube-ipvs" requested_mask="w"`)
	}, finding.Warning, []string{"security module", `name="/proc/sys/net/ipv4/vs/conntrack"`, "aa-logprof"}},
	{"SELinux denies, with auditd", func(_ *testing.T, n *node) {
		n.files["/sys/fs/selinux/enforce"] = "1"
		n.files["/var/log/audit/audit.log"] = denied(noon, `avc:  denied  { module_request } for  pid=42 comm="runtime.1" kmod="ip_vs_mh"`)
	}, finding.Warning, []string{"module_request", "audit2allow"}},
	{"denials of others, or before this agent", func(_ *testing.T, n *node) {
		n.files["/sys/module/apparmor/parameters/enabled"] = "Y\n"
		n.log = denied(noon, `apparmor="DENIED" operation="open" pid=421 comm="kube-ipvs-other"`) +
			denied(noon.Add(-2*time.Hour), `apparmor="DENIED" operation="open" pid=4711 comm="kube-ipvs"`) + denied(noon, `apparmor="ALLOWED" pid=42 comm="kube-ipvs"`)
	}, "", nil},
	// the kernel
	{"full table an hour ago", func(_ *testing.T, n *node) {
		n.log = "<4>[82700.123456] nf_conntrack: nf_conntrack: table full, dropping packet\n"
	}, "", nil},
	{"full table", func(_ *testing.T, n *node) {
		n.log = strings.Repeat("<4>[86300.123456] nf_conntrack: nf_conntrack: table full, dropping packet\n", 3)
	}, finding.Warning, []string{"connection tracking", "3 messages in the kernel's log in the last hour, the latest: <4>[86300"}},
	{"full neighbor table", func(_ *testing.T, n *node) { n.log = "[86300.1] arp_cache: neighbor table overflow!\n" }, finding.Warning, []string{"neighbor table"}},
	{"killed agent", func(_ *testing.T, n *node) {
		n.log = "<3>[86300.1] Memory cgroup out of memory: Killed process 4242 (kube-ipvs) total-vm:1kB\n<3>[86301.1] Out of memory: Killed process 9 (java) total-vm:1kB\n"
	}, finding.Warning, []string{"agent", "1 message"}},
	{"interface in use", func(_ *testing.T, n *node) {
		n.log = "<0>[86300.1] unregister_netdevice: waiting for eth5 to become free. Usage count = 2\n"
	}, finding.Warning, []string{"eth5"}},
	{"crash", func(_ *testing.T, n *node) {
		n.log = "<4>[86300.1] RIP: 0010:ip_vs_unbind_scheduler+0x1/0x2 [ip_vs]\n<4>[86300.2] RIP: 0010:ext4_x+0x1/0x2\n"
	}, finding.Warning, []string{"it crashed", "1 message", "ip_vs_unbind_scheduler"}},
	{"IPVS's defense", func(_ *testing.T, n *node) { n.files["/proc/sys/net/ipv4/vs/drop_packet"] = "3\n" }, finding.Warning, []string{"net/ipv4/vs/drop_packet = 3"}},
	{"IPVS's defense, off", func(_ *testing.T, n *node) { n.files["/proc/sys/net/ipv4/vs/drop_packet"] = "0\n" }, "", nil},
	{"IPVS ignores packets", func(_ *testing.T, n *node) { n.backup(); n.files["/proc/701/comm"] = "ipvs-b:0:0\n" }, finding.Broken,
		[]string{"net/ipv4/vs/backup_only = 1", "a backup daemon", "is running"}},
	{"IPVS would ignore packets", func(_ *testing.T, n *node) { n.backup() }, finding.Warning, []string{"net/ipv4/vs/backup_only = 1"}},
	{"agent without file descriptors", func(_ *testing.T, n *node) { n.silent(4) }, finding.Broken, []string{"process 42 has 5 open files, and its limit is 4", "LimitNOFILE"}},
	{"silent agent with file descriptors", func(_ *testing.T, n *node) { n.silent(1024) }, finding.Broken, []string{"no agent responds", "see its log"}},
	{"loopback", func(_ *testing.T, n *node) { clear(n.answers) }, finding.Warning, []string{"connections to 127.0.0.1 fail", "`ip link show lo`"}},
	{"no security module", func(_ *testing.T, n *node) { n.log = denied(noon, `apparmor="DENIED" pid=42 comm="kube-ipvs"`) }, "", nil},
}

func (n *node) backup() { n.files["/proc/sys/"+backupOnly] = "1\n" }

// silent makes an agent silent that has five open files.
func (n *node) silent(limit int) {
	n.View, n.Silence, n.Holder = nil, "no agent responds", 42
	n.files["/proc/42/limits"] = fmt.Sprintf("Limit           Soft Limit  Hard Limit  Units\nMax open files  %d          4096        files\n", limit)
	for i := range 5 {
		n.files[fmt.Sprintf("/proc/42/fd/%d", i)] = ""
	}
}

func (n *node) run(name string) { n.files["/proc/700/comm"] = name + "\n" }

func denied(at time.Time, what string) string {
	return fmt.Sprintf("<5>[  12.345678] audit: type=1400 audit(%d.123:45): %s\n", at.Unix(), what)
}
