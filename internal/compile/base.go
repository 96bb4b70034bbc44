package compile

import (
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Base compiles the part of the wanted state that does not depend on Services.
func Base(cfg Config) want.Base {
	base := want.Base{
		Seed: cfg.NodeName, Sysctls: nodeSysctls(cfg), Timeouts: timeouts(cfg), Ledger: map[inet.Family]string{}, Limited: map[inet.Family]string{},
		AllPorts: map[inet.Family][]string{}, ClusterIPs: map[inet.Family]string{}, OnlyUser: cfg.Mode.NFTablesBalances(), Binding: cfg.Binding,
	}
	for _, f := range cfg.Families {
		for _, set := range allSets {
			base.Sets = append(base.Sets, set.declare(f))
		}
		if cfg.Mode != kernel.Userspace {
			base.Rulesets = append(base.Rulesets, rules(cfg, f))
		}
		base.Ledger[f] = ledger.in(f)
		base.Limited[f] = limited.in(f)
		base.ClusterIPs[f] = clusterIPs.in(f)
		base.AllPorts[f] = []string{allPorts.in(f), guardedIPs.in(f)}
	}
	return base
}

// rules returns the ruleset of a family. Services change only the sets, not the rules.
func rules(cfg Config, f inet.Family) kernel.Ruleset {
	if cfg.Mode.NFTablesBalances() {
		return balancingRules(cfg, f)
	}
	return ipvsRules(cfg, f)
}

func nodeSysctls(cfg Config) []kernel.SysctlSetting {
	if cfg.Mode == kernel.Userspace {
		return sysctls[:1]
	}
	all := slices.Clone(sysctls)
	if cfg.StrictARP {
		all = append(all, strictARP...)
	}
	if cfg.StopCounters {
		all = append(all, stoppedCounters)
	}
	all = append(all, cfg.Sysctls...)
	if cfg.Mode.NFTablesBalances() {
		return slices.DeleteFunc(all, func(s kernel.SysctlSetting) bool { return strings.HasPrefix(s.Name, ipvsSysctls) })
	}
	return all
}

// ipvsSysctls is the prefix of the sysctls that exist only with IPVS.
const ipvsSysctls = "net/ipv4/vs/"

// timeouts returns the timeouts of IPVS connections. Connections that nftables balances use conntrack's timeouts.
func timeouts(cfg Config) kernel.Timeouts {
	if !cfg.Mode.IPVSBalances() {
		return kernel.Timeouts{}
	}
	return cfg.Timeouts
}

// strictARP makes this node answer ARP requests for an address only on the interface that has the address. kube-ipvs0 never answers. Otherwise every
// node would answer for a load balancer's address, not only the node that announces it (MetalLB, kube-vip).
var strictARP = []kernel.SysctlSetting{
	{Name: "net/ipv4/conf/all/arp_ignore", Value: "1"},
	{Name: "net/ipv4/conf/all/arp_announce", Value: "2"},
}

// stoppedCounters keeps the kernel from adding up the counters of packets and bytes every two seconds. Before Linux 6.2, it adds up all of them
// in one interrupt: 14 ms with 110,000 virtual servers and destinations.
var stoppedCounters = kernel.SysctlSetting{Name: ipvsSysctls + "run_estimation", Value: "0", Optional: true}

// sysctls are the settings that IPVS needs to serve Kubernetes Services.
var sysctls = []kernel.SysctlSetting{
	// The node forwards packets that are not addressed to it, such as endpoints' replies to external clients. In user space, it forwards the
	// packets of pods to the agent's network namespace.
	{Name: "net/ipv4/ip_forward", Value: "1"},
	// IPVS connections need conntrack. Without it, nothing is masqueraded, and replies count as new connections.
	{Name: "net/ipv4/vs/conntrack", Value: "1"},
	// When an endpoint is removed, its TCP connections end instead of hanging, and its UDP clients move to another endpoint.
	{Name: "net/ipv4/vs/expire_nodest_conn", Value: "1"},
	// Session affinity must not send clients to an endpoint with weight 0.
	{Name: "net/ipv4/vs/expire_quiescent_template", Value: "1"},
	// A new connection from a reused source port is scheduled again. With the value 0, IPVS would send it to the old endpoint, even if that was
	// deleted. Before Linux 5.9, the client waited one second.
	{Name: "net/ipv4/vs/conn_reuse_mode", Value: "1"},
}
