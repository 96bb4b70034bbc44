package compile

import (
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Base compiles the part of the wanted state that does not depend on any Service.
func Base(cfg Config) want.Base {
	base := want.Base{
		Seed: cfg.NodeName, Sysctls: nodeSysctls(cfg), Timeouts: cfg.Timeouts, Ledger: map[inet.Family]string{}, Limited: map[inet.Family]string{},
		AllPorts: map[inet.Family]string{},
	}
	for _, f := range cfg.Families {
		for _, set := range allSets {
			base.Sets = append(base.Sets, set.declare(f))
		}
		base.Rulesets = append(base.Rulesets, rules(cfg, f))
		base.Ledger[f] = ledger.in(f)
		base.Limited[f] = limited.in(f)
		base.AllPorts[f] = allPorts.in(f)
	}
	return base
}

func nodeSysctls(cfg Config) []kernel.SysctlSetting {
	all := slices.Clone(sysctls)
	if cfg.StrictARP {
		all = append(all, strictARP...)
	}
	return append(all, cfg.Sysctls...)
}

// strictARP makes this node answer for an address only on the interface that has it. kube-ipvs0 answers nowhere: a load balancer
// that announces its address (MetalLB, kube-vip) would otherwise be contradicted by every node, since each has that address.
var strictARP = []kernel.SysctlSetting{
	{Name: "net/ipv4/conf/all/arp_ignore", Value: "1"},
	{Name: "net/ipv4/conf/all/arp_announce", Value: "2"},
}

// sysctls without which IPVS does not serve Kubernetes Services.
var sysctls = []kernel.SysctlSetting{
	// Requests leave through this node though they were not addressed to it.
	{Name: "net/ipv4/ip_forward", Value: "1"},
	// IPVS connections are conntrack connections: without it nothing is masqueraded and replies count as new.
	{Name: "net/ipv4/vs/conntrack", Value: "1"},
	// A client whose endpoint is gone is told so at once (TCP) or moves to another one (UDP), instead of a silent hole.
	{Name: "net/ipv4/vs/expire_nodest_conn", Value: "1"},
	// Session affinity does not hold clients to an endpoint that takes no new connections.
	{Name: "net/ipv4/vs/expire_quiescent_template", Value: "1"},
	// A client that reuses its port is balanced anew; 0 would pin it to endpoints that are gone. (Before Linux 5.9 this
	// cost such clients one second.)
	{Name: "net/ipv4/vs/conn_reuse_mode", Value: "1"},
}
