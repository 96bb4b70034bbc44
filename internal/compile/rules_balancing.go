package compile

import (
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Where nftables balances, a packet gets its endpoint's address before it is routed, so it never reaches INPUT: what closes ports must see it
// before. These chains do what those of the same names do in the table filter.
var (
	chainBalancingFilter = kernel.ChainID{Table: "mangle", Chain: chainFilter.Chain}
	chainBalancingGuards = kernel.ChainID{Table: "mangle", Chain: chainGuards.Chain}
)

// serveVerdict is the verdict for a new connection to a served port in the nat table: IPVS finds it later, nftables balances it now.
func (cfg Config) serveVerdict() kernel.Verdict {
	if cfg.Mode.NFTablesBalances() {
		return kernel.Balance{}
	}
	return kernel.Accept
}

// balancingRules are the rules of a family where nftables balances.
func balancingRules(cfg Config, f inet.Family) kernel.Ruleset {
	ours, notEstablished := cfg.chains(), kernel.Established{Not: true}
	return kernel.Ruleset{
		Family: f,
		Chains: []kernel.Chain{
			{ChainID: chainBalancingFilter, Rules: filterRules(cfg, f)},
			{ChainID: chainBalancingGuards, Rules: guardRules(cfg, f)},
			{ChainID: chainFilter, Rules: untranslatedRules(f)},
			{ChainID: chainFirewall, Rules: firewallRules(f)},
			{ChainID: ours.forward, Rules: invalidRules()},
			{ChainID: chainClosed, Rules: ownPacketRules(f)},
			{ChainID: chainEgress, Rules: egressRules(cfg, f)},
			{ChainID: chainOutput, Rules: outputRules(cfg, f)},
			{ChainID: chainClusterIP, Rules: clusterIPRules(cfg, f)},
			{ChainID: ours.markMasq, Rules: markRules(cfg)},
			{ChainID: ours.postrouting, Rules: postroutingRules(cfg, f)},
			{ChainID: ours.services, Rules: servicesRules(cfg, f)},
		},
		Jumps: []kernel.Jump{
			jump("mangle", "PREROUTING", chainFirewall, "source ranges of load balancers", notEstablished, port(firewalled, f)),
			jump("mangle", "PREROUTING", chainBalancingFilter, "ports of virtual addresses that no Service uses", notEstablished),
			jump("mangle", "OUTPUT", chainClosed, "ports that are closed to the node itself", notEstablished),
			jump("filter", "INPUT", chainFilter, "packets that nothing balanced", notEstablished),
			jump("filter", "FORWARD", ours.forward, "replies of Service endpoints"),
			jump("nat", "PREROUTING", ours.services, "Services"),
			jump("nat", "OUTPUT", chainOutput, "Services"),
			jump("nat", "POSTROUTING", ours.postrouting, "masquerading for Services"),
		},
	}
}

// untranslatedRules drop the packets to served ports that reach the node itself: those of connections that began before the Service existed. Their
// client sends them again, and is balanced when the agent has deleted the connection's entry in conntrack. The node would refuse them.
func untranslatedRules(f inet.Family) (rs []kernel.Rule) {
	for _, set := range served {
		rs = append(rs, rule("a connection that began before the Service", kernel.Drop, port(set, f)))
	}
	return rs
}

// invalidRules drop what conntrack cannot assign to a connection. An endpoint's reply outside the window of its connection, for instance,
// would reach the client from the endpoint's own address, and the client would reset the connection (kubernetes/kubernetes#74839). IPVS
// translates such replies.
func invalidRules() []kernel.Rule {
	return []kernel.Rule{rule("a reply without translation would make the client reset its connection", kernel.Drop, kernel.Invalid{})}
}

// ownPacketRules see the node's own packets: what must not reach an endpoint is refused before it loops back to the node.
func ownPacketRules(f inet.Family) []kernel.Rule {
	const noEndpoint = "no endpoint for the node itself"
	rs := []kernel.Rule{rule("source ranges of load balancers", jumpTo(chainFirewall), port(firewalled, f))}
	for _, set := range []setRef{noLocal, refused} {
		rs = append(rs, rejectRules(f, noEndpoint, noEndpoint, port(set, f))...)
	}
	for _, set := range served {
		rs = append(rs, rule("a Service with endpoints", kernel.Return, port(set, f)))
	}
	rs = append(rs,
		rule("not a virtual address", kernel.Return, not(address(vips, f))),
		rule("allow ping", kernel.Return, kernel.Ping{Family: f}))
	return slices.Concat(rs, rejectRules(f, "only this error makes an SCTP client fail", "unserved port"))
}
