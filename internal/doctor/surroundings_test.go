package doctor

import (
	"fmt"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// surroundings lists defects outside the agent: networks, credentials, other programs.
var surroundings = []breakage{
	// MTU
	{"MTU above a VLAN", func(_ *testing.T, n *node) {
		n.files["/proc/net/route"] = replaceUplink("eth0.5")
		n.link(kernel.Interface{Name: "eth0.5", Kind: "vlan", MTU: 1500, Up: true, Addressed: true, Parent: "eth0"})
		n.link(kernel.Interface{Name: "flannel.1", Kind: "vxlan", MTU: 1500, Up: true})
	}, finding.Warning, []string{"flannel.1 (vxlan) has MTU 1500 and adds 50 bytes, but the uplink has MTU 1500"}},
	{"MTU above a bond", func(_ *testing.T, n *node) {
		n.files["/proc/net/route"] = replaceUplink("bond0")
		n.link(kernel.Interface{Name: "eth0", Kind: "device", MTU: 1500, Up: true, Master: "bond0"})
		n.link(kernel.Interface{Name: "bond0", Kind: "bond", MTU: 1500, Up: true, Addressed: true})
		n.link(kernel.Interface{Name: "tunl0", Kind: "ipip", MTU: 1500, Up: true})
	}, finding.Warning, []string{"tunl0 (ipip) has MTU 1500 and adds 20 bytes, but the uplink has MTU 1500"}},
	{"VLAN that is wider than its device", func(_ *testing.T, n *node) {
		n.files["/proc/net/route"] = replaceUplink("eth0.5")
		n.link(kernel.Interface{Name: "eth0.5", Kind: "vlan", MTU: 9000, Up: true, Addressed: true, Parent: "eth0"})
	}, finding.Warning, []string{"eth0.5 (vlan) has MTU 9000", "leave through eth0 with MTU 1500"}},
	{"bridge as the uplink, with a pod on it", func(_ *testing.T, n *node) {
		n.files["/proc/net/route"] = replaceUplink("br0")
		n.link(kernel.Interface{Name: "eth0", Kind: "device", MTU: 1500, Up: true, Master: "br0"})
		n.link(kernel.Interface{Name: "br0", Kind: "bridge", MTU: 1500, Up: true, Addressed: true})
		n.link(kernel.Interface{Name: "veth1", Kind: "veth", MTU: 9000, Up: true, Master: "br0", Container: true})
	}, finding.Warning, []string{"veth1 (veth), which leads to pods, has MTU 9000, but the uplink has MTU 1500"}},
	{"pods on a bridge, wider than the tunnel", func(_ *testing.T, n *node) { n.tunnel(1450, 1500); n.pods(1500) }, finding.Warning,
		[]string{"cni0 (bridge), which leads to pods, has MTU 1500, but flannel.1 has MTU 1450"}},
	{"pods on a bridge that fit", func(_ *testing.T, n *node) { n.tunnel(1450, 1500); n.pods(1450) }, "", nil},
	{"containers of Docker", func(_ *testing.T, n *node) {
		n.tunnel(1450, 1500)
		n.link(kernel.Interface{Name: "docker0", Kind: "bridge", MTU: 1500, Up: true, Addressed: true})
		n.link(kernel.Interface{Name: "veth1", Kind: "veth", MTU: 1500, Up: true, Master: "docker0", Container: true})
	}, "", nil},
	{"tunnel device of a module, not in use", func(_ *testing.T, n *node) { n.link(kernel.Interface{Name: "tunl0", Kind: "ipip", MTU: 1500}) }, "", nil},
	{"uplink that is too narrow for IPv6", func(_ *testing.T, n *node) { n.tunnel(1450, 1200) }, finding.Warning, []string{"raise the uplink's MTU", "below 1280"}},
	{"MTU over IPv6", func(_ *testing.T, n *node) { n.onlyIPv6("00450003"); n.tunnel(1450, 1500) }, finding.Warning, []string{"has MTU 1450 and adds 70 bytes"}},

	// IPv6
	{"only IPv6", func(_ *testing.T, n *node) { n.onlyIPv6("00450003") }, "", nil},
	{"only IPv6, forwarding off", func(_ *testing.T, n *node) { n.onlyIPv6("00450003"); n.files["/proc/sys/"+ipv6Forwarding] = "0\n" }, finding.Warning,
		[]string{"forwarding", ipv6Forwarding + " = 0", "3 IPv6 virtual servers"}},
	{"only IPv6, neighbors", func(_ *testing.T, n *node) {
		n.onlyIPv6("00450003")
		n.files["/proc/net/stat/ndisc_cache"] = fmt.Sprintf(stat, 1000, 1000)
	}, finding.Warning, []string{"neighbor table of IPv6", "1000 entries", "net.ipv6.neigh.default.gc_thresh3"}},
	{"route that a router advertises", func(_ *testing.T, n *node) {
		n.onlyIPv6("00450003")
		n.files["/proc/sys/net/ipv6/conf/eth0/accept_ra"] = "1\n"
	}, finding.Warning,
		[]string{"IPv6 default route", "eth0/accept_ra = 1, must be 2"}},
	{"IPv6 off on the device", func(_ *testing.T, n *node) { n.onlyIPv6("00450003"); n.ipv6Off("all", kernel.Device) }, finding.Broken,
		[]string{"disabled, and this node serves 3 IPv6 virtual servers", "net/ipv6/conf/kube-ipvs0/disable_ipv6 = 1", "net/ipv6/conf/all/disable_ipv6 = 1"}},
	{"IPv6 off on the device, as the agent reports", func(_ *testing.T, n *node) {
		n.onlyIPv6("00450003")
		n.ipv6Off(kernel.Device)
		n.View.AddNodeProblems([]model.Problem{{Object: model.NodeRef("node-1"), Field: "net.ipv6.conf.kube-ipvs0.disable_ipv6", Reason: "off"}})
	}, finding.Warning, []string{"this node", "disable_ipv6"}},
	{"IPv6 off on the uplink", func(_ *testing.T, n *node) { n.onlyIPv6("00450003"); n.ipv6Off("eth0") }, finding.Warning, []string{"net/ipv6/conf/eth0/disable_ipv6 = 1"}},
	{"IPv6 off on one of two uplinks", func(_ *testing.T, n *node) {
		n.onlyIPv6("00450003")
		n.second()
		n.files["/proc/net/route"] = replaceUplink("eth1")
		n.ipv6Off("eth1")
	}, "", nil},
	{"IPv6 off without IPv6 Services", func(_ *testing.T, n *node) { n.ipv6Off("all", "lo", "eth0", kernel.Device) }, "", nil},
	{"uplink without IPv6 because of its MTU", func(_ *testing.T, n *node) {
		n.onlyIPv6("00450003")
		n.link(kernel.Interface{Name: "eth0", Kind: "device", MTU: 1200, Up: true, Addressed: true})
	}, finding.Warning, []string{"eth0 has MTU 1200, and IPv6 needs 1280"}},
	{"static route", func(_ *testing.T, n *node) {
		n.onlyIPv6("00000003")
		n.files["/proc/sys/net/ipv6/conf/eth0/accept_ra"] = "1\n"
	}, "", nil},
	{"forwarding off at the uplink", func(_ *testing.T, n *node) {
		n.files["/proc/sys/net/ipv4/conf/all/forwarding"], n.files["/proc/sys/net/ipv4/conf/eth0/forwarding"] = "1\n", "0\n"
	}, finding.Warning, []string{"net/ipv4/conf/eth0/forwarding = 0"}},

	// reverse path, ports
	{"strict reverse path, one default route", func(_ *testing.T, n *node) { n.second(); n.files["/proc/sys/net/ipv4/conf/all/rp_filter"] = "1\n" }, finding.Warning,
		[]string{"reverse path filter", "eth1/rp_filter", "all/rp_filter = 1"}},
	{"strict reverse path, one network", func(_ *testing.T, n *node) { n.pods(1500); n.files["/proc/sys/net/ipv4/conf/all/rp_filter"] = "1\n" }, "", nil},
	{"strict reverse path, with Docker and an empty bridge", func(_ *testing.T, n *node) {
		n.link(kernel.Interface{Name: "docker0", Kind: "bridge", MTU: 1500, Up: true, Addressed: true})
		n.link(kernel.Interface{Name: "veth1", Kind: "veth", MTU: 1500, Up: true, Master: "docker0", Container: true})
		n.link(kernel.Interface{Name: "cni0", Kind: "bridge", MTU: 1500, Up: true, Addressed: true})
		n.files["/proc/sys/net/ipv4/conf/all/rp_filter"] = "1\n"
	}, "", nil},
	{"strict reverse path at a bridge to a network", func(_ *testing.T, n *node) {
		n.link(kernel.Interface{Name: "br1", Kind: "bridge", MTU: 1500, Up: true, Addressed: true})
		n.link(kernel.Interface{Name: "eth1", Kind: "device", MTU: 1500, Up: true, Master: "br1"})
		n.files["/proc/sys/net/ipv4/conf/br1/rp_filter"] = "1\n"
	}, finding.Warning, []string{"br1/rp_filter = 1"}},
	{"local ports over node ports, without the guard", func(_ *testing.T, n *node) {
		n.files["/proc/sys/"+localPorts] = "1024\t65535\n"
		n.files["/proc/sys/"+reservedPorts], n.NodePorts = "8080,30010\n", []uint16{30080, 40080}
		n.View.Node.ReservesNodePorts = false
	}, finding.Warning, []string{"ip_local_port_range = 1024 65535", "30011-32767", "ip_local_reserved_ports to 8080,30000-32767,40080,"}},
	{"local ports over node ports, and nftables balances", func(_ *testing.T, n *node) {
		n.files["/proc/sys/"+localPorts], n.NodePorts, n.View.Node.Mode = "1024\t65535\n", []uint16{30080}, kernel.NFTablesOnly
	}, "", nil},
	{"guarded node port", func(_ *testing.T, n *node) {
		n.files["/proc/sys/"+localPorts], n.files["/proc/sys/"+reservedPorts], n.NodePorts = "1024\t65535\n", "30080\n", []uint16{30080}
	}, "", nil},
	{"node port that the guard has not reserved", func(_ *testing.T, n *node) {
		n.files["/proc/sys/"+localPorts], n.NodePorts = "1024\t65535\n", []uint16{30080}
	}, finding.Warning, []string{"a Service has the node port 30080"}},
	{"reserved node ports", func(_ *testing.T, n *node) {
		n.files["/proc/sys/"+localPorts], n.files["/proc/sys/"+reservedPorts] = "1024\t65535\n", "8080,30000-32767\n"
	}, "", nil},
	{"node port of another range", func(_ *testing.T, n *node) { n.NodePorts = []uint16{30080, 40080} }, finding.Warning,
		[]string{"a Service has the node port 40080", "ip_local_reserved_ports to 40080,"}},

	// credentials
	{"old CA in a bundle", func(_ *testing.T, n *node) {
		ca := authority("new", noon.AddDate(10, 0, 0))
		n.authorities(authority("old", noon.AddDate(0, 0, -1)), ca)
		n.serve(ca.issue("kubernetes", noon.AddDate(1, 0, 0)))
	}, finding.Notice, []string{"1 of 2 CAs in " + serviceAccount + "ca.crt"}},
	{"the CA in use is the old one", func(_ *testing.T, n *node) {
		ca := authority("old", noon.AddDate(0, 0, -1))
		n.authorities(ca, authority("new", noon.AddDate(10, 0, 0)))
		n.serve(ca.issue("kubernetes", noon.AddDate(1, 0, 0)))
	}, finding.Broken, []string{"certificate " + serviceAccount + "ca.crt", "expired 2026-02-28"}},
	{"every CA has expired", func(_ *testing.T, n *node) {
		n.authorities(authority("old", noon.AddDate(0, 0, -9)), authority("older", noon.AddDate(0, 0, -30)))
	}, finding.Broken, []string{"expired 2026-02-20"}},
	{"certificate of another context", func(_ *testing.T, n *node) { n.kubeconfig("server: https://192.0.2.10:6443", "token: abc") }, "", nil},
	{"the API server's certificate soon ends", func(_ *testing.T, n *node) {
		ca := authority("ca", noon.AddDate(10, 0, 0))
		n.authorities(ca)
		n.serve(ca.issue("kubernetes", noon.AddDate(0, 0, 7)))
	}, finding.Warning, []string{"certificate of the API server 10.96.0.1:443", "expires 2026-03-08", "kubeadm certs renew apiserver"}},
	{"the API server's certificate, with a kubeconfig", func(_ *testing.T, n *node) {
		n.kubeconfig("server: https://192.0.2.10:6443", "token: abc")
		n.serve(authority("kubernetes", noon.AddDate(0, 0, -1)))
	}, finding.Broken, []string{"certificate of the API server https://192.0.2.10:6443", "expired 2026-02-28"}},
	{"the token soon ends", func(_ *testing.T, n *node) {
		n.files[serviceAccount+"token"] = jwt(noon.Add(-57*time.Minute), noon.Add(3*time.Minute))
	}, finding.Warning, []string{"token " + serviceAccount + "token", "expires 2026-03-01T12:03:00Z", "kubelet"}},
	{"the token has ended", func(_ *testing.T, n *node) {
		n.kubeconfig("server: https://192.0.2.10:6443", "tokenFile: token")
		n.files["/etc/token"] = jwt(noon.AddDate(-1, 0, 0), noon.Add(-time.Minute))
	}, finding.Broken, []string{"token /etc/token", "expired 2026-03-01"}},
	{"manifests instead of an API server", func(_ *testing.T, n *node) {
		n.set("manifests", "/etc/kube-ipvs")
		delete(n.files, serviceAccount+"ca.crt")
	}, "", nil},

	// FORWARD
	{"FORWARD before pods, with IPVS", func(_ *testing.T, n *node) { n.pods(1500); n.forward() }, finding.Broken, []string{"drops the packets to pods", "IPv4: -P FORWARD DROP"}},
	{"FORWARD of Docker before pods", func(_ *testing.T, n *node) {
		n.pods(1500)
		n.forward("-o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", "-i docker0 ! -o docker0 -j ACCEPT")
	}, finding.Broken, []string{"none of its rules (2) accepts them"}},
	{"FORWARD with the agent's rule only", func(_ *testing.T, n *node) {
		n.pods(1500)
		n.forward(`-m comment --comment "kube-ipvs:0123456789 replies" -m mark --mark 0x4000/0x4000 -j ACCEPT`)
	}, finding.Broken, []string{"none of its rules (1) accepts them"}},
	{"FORWARD accepts packets to the pods' bridge", func(_ *testing.T, n *node) { n.pods(1500); n.forward("-o cni0 -j ACCEPT") }, "", nil},
	{"FORWARD that accepts pods by a prefix", func(_ *testing.T, n *node) { n.pods(1500); n.forward("-i eth+ -o veth+ -j ACCEPT") }, "", nil},
	{"FORWARD that accepts by address", func(_ *testing.T, n *node) { n.pods(1500); n.forward("-d 10.244.0.0/16 -j ACCEPT") }, "", nil},
	{"FORWARD of ufw before pods", func(_ *testing.T, n *node) {
		n.pods(1500)
		n.forward("-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", "-p icmp -m icmp --icmp-type 8 -j ACCEPT", "-p icmp -j ACCEPT", "-p gre -j ACCEPT",
			"-p 47 -j ACCEPT", "-f -j ACCEPT")
	}, finding.Broken, []string{"none of its rules (6) accepts them"}},
	{"FORWARD before pods, with a chain for ICMP", func(_ *testing.T, n *node) {
		n.pods(1500)
		n.forward("-p icmp -j PINGS")
		at := kernel.ChainID{Table: "filter", Chain: "PINGS"}
		n.Rules[inet.IPv4].Rules[at] = []kernel.SavedRule{iptables.ParseRule(at, "-j ACCEPT")}
	}, finding.Broken, []string{"none of its rules (1) accepts them"}},
	{"FORWARD of firewalld before pods, with IPVS", func(_ *testing.T, n *node) {
		n.pods(1500)
		n.forward("-m conntrack --ctstate RELATED,ESTABLISHED,DNAT -j ACCEPT")
	}, finding.Broken, []string{"none of its rules (1) accepts them"}},
	{"FORWARD of firewalld before pods, with nftables", func(_ *testing.T, n *node) {
		n.balance()
		n.pods(1500)
		n.forward("-m conntrack --ctstate RELATED,ESTABLISHED,DNAT -j ACCEPT")
	}, "", nil},
	{"FORWARD that accepts what is not translated", func(_ *testing.T, n *node) {
		n.pods(1500)
		n.forward("-m conntrack ! --ctstate DNAT -j ACCEPT")
	}, "", nil},
	{"FORWARD that accepts a protocol", func(_ *testing.T, n *node) { n.pods(1500); n.forward("-p udp -j ACCEPT") }, "", nil},
	{"FORWARD that accepts other protocols than ICMP", func(_ *testing.T, n *node) { n.pods(1500); n.forward("! -p icmp -j ACCEPT") }, "", nil},
	{"FORWARD that accepts packets without fragments", func(_ *testing.T, n *node) { n.pods(1500); n.forward("! -f -j ACCEPT") }, "", nil},
	{"FORWARD of iptables-legacy before pods", func(_ *testing.T, n *node) {
		n.pods(1500)
		n.forward("-o cni0 -j ACCEPT")
		n.Legacy = map[inet.Family]kernel.RuleListing{inet.IPv4: {Policies: map[kernel.ChainID]string{forward: "DROP"}}}
	}, finding.Broken, []string{"IPv4, iptables-legacy: -P FORWARD DROP", "`iptables-legacy -I FORWARD -d PODS -j ACCEPT`"}},
	{"FORWARD of iptables-legacy, with nftables", func(_ *testing.T, n *node) {
		n.balance()
		n.Legacy = map[inet.Family]kernel.RuleListing{inet.IPv6: {Policies: map[kernel.ChainID]string{forward: "DROP"}}}
	}, finding.Broken, []string{"IPv6, ip6tables-legacy: -P FORWARD DROP", "ip6tables-legacy -I FORWARD -m conntrack --ctstate DNAT -j ACCEPT"}},
	{"FORWARD of iptables-legacy that accepts pods", func(_ *testing.T, n *node) {
		n.pods(1500)
		n.forward("-o cni0 -j ACCEPT")
		n.Legacy = n.Rules
	}, "", nil},
	{"FORWARD in nftables before pods", func(_ *testing.T, n *node) {
		n.pods(1500)
		n.Chains = []kernel.BaseChain{{Family: "inet", Table: "guard", Name: "fwd", Hook: kernel.HookForward, Drops: true}}
	}, finding.Broken, []string{"nft list chain inet guard fwd"}},
}

func replaceUplink(name string) string {
	return "Iface\tDestination\n" + name + "\t00000000\t0102A8C0\t0003\t0\t0\t0\t00000000\n"
}

func (n *node) ipv6Off(names ...string) {
	for _, name := range names {
		n.files["/proc/sys/"+ipv6Conf+name+disableIPv6] = "1\n"
	}
}

// onlyIPv6 leaves only one default route: an IPv6 route with these flags.
func (n *node) onlyIPv6(flags string) {
	n.files["/proc/net/route"] = "Iface\tDestination\n"
	n.files["/proc/net/ipv6_route"] = lookback6 + fmt.Sprintf(route6, flags)
	n.files["/proc/sys/"+ipv6Forwarding], n.IPv6Servers = "1\n", 3
}
