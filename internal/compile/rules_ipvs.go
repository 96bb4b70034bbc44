package compile

import (
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// ipvsRules returns the rules for one family on a node where IPVS balances the connections.
func ipvsRules(cfg Config, f inet.Family) kernel.Ruleset {
	ours := cfg.chains()
	all := kernel.Ruleset{
		Family: f,
		Chains: []kernel.Chain{
			{ChainID: chainFilter, Rules: filterRules(cfg, f)},
			{ChainID: chainGuards, Rules: guardRules(cfg, f)},
			{ChainID: ours.forward, Rules: forwardRules()},
			{ChainID: chainFirewall, Rules: firewallRules(f)},
			{ChainID: chainClosed, Rules: closedRules(cfg, f)},
			{ChainID: chainEgress, Rules: egressRules(cfg, f)},
			{ChainID: chainOutput, Rules: outputRules(cfg, f)},
			{ChainID: chainClusterIP, Rules: clusterIPRules(cfg, f)},
			{ChainID: ours.markMasq, Rules: markRules(cfg)},
			{ChainID: ours.postrouting, Rules: postroutingRules(cfg, f)},
			{ChainID: ours.services, Rules: servicesRules(cfg, f)},
		},
		Jumps: jumps(ours, f),
	}
	if cfg.Mode.RulesInNFTables() { // an accept in one nftables table does not overrule another table's drop, and kube-proxy's chains are in its own table
		all.Chains = slices.DeleteFunc(all.Chains, func(c kernel.Chain) bool { return c.ChainID == ours.forward })
		all.Jumps = slices.DeleteFunc(all.Jumps, func(j kernel.Jump) bool { return j.Chain == "FORWARD" })
		return all
	}
	if !cfg.SideBySide {
		all.Chains = append(all.Chains, kernel.Chain{ChainID: chainProxyFirewall}, kernel.Chain{ChainID: chainProxyOutFilter})
	}
	return all
}

func jumps(ours chains, f inet.Family) []kernel.Jump {
	nat, filter, mangle := "nat", "filter", "mangle"
	notEstablished := kernel.Established{Not: true}
	return []kernel.Jump{
		// Packets of established connections skip these chains after one match. Most other packets skip the chains of
		// the mangle table after one lookup.
		jump(filter, "INPUT", chainFilter, "ports of virtual addresses that no Service uses", notEstablished),
		jump(mangle, "INPUT", chainFirewall, "source ranges of load balancers", notEstablished, toPort(firewalled, f)),
		// The node's own packets reach IPVS before the filter table. Packets that IPVS forwards also traverse OUTPUT, so there is only one
		// jump.
		jump(mangle, "OUTPUT", chainClosed, "source ranges of load balancers, and unserved ports at addresses with an all-ports server",
			notEstablished, toAddress(guardedIPs, f)),
		jump(filter, "FORWARD", ours.forward, "replies of Service endpoints"),
		jump(nat, "PREROUTING", ours.services, "Services"),
		jump(nat, "OUTPUT", chainOutput, "Services"),
		jump(nat, "POSTROUTING", ours.postrouting, "masquerading for Services"),
	}
}

// closedRules drop the node's own packets that no virtual server may receive: packets from outside the source ranges, and packets to unserved ports
// at addresses with an all-ports server. These packets reach IPVS before the filter table. Rules in the mangle table of iptables cannot reject
// packets.
func closedRules(cfg Config, f inet.Family) []kernel.Rule {
	closed := []kernel.Condition{toAddress(allPorts, f)}
	for _, set := range served {
		closed = append(closed, negated(toPort(set, f)))
	}
	rs := []kernel.Rule{
		rule("source ranges of load balancers", jumpTo(chainFirewall)),
		rule("allow ping", kernel.Return, kernel.Ping{Family: f}),
	}
	if cfg.Mode.RulesInNFTables() {
		return append(rs, rejectRules(f, "only this error makes an SCTP client fail", "unserved port", closed...)...)
	}
	return append(rs, rule("unserved port", kernel.Drop, closed...))
}

// forwardRules accept replies even if the node's FORWARD policy is DROP. Requests reach endpoints through OUTPUT, but replies return through FORWARD.
//
// Unlike kube-proxy in other modes, they do not drop packets that conntrack considers invalid. IPVS restores the virtual address even in late
// replies, and conntrack considers a connection invalid if it sees only one direction.
func forwardRules() []kernel.Rule {
	return []kernel.Rule{rule("replies of Service endpoints", kernel.Accept, kernel.Established{})}
}
