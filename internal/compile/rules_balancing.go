package compile

import (
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// balancingRules returns the rules of a family on a node where nftables balances.
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
			jump("mangle", "PREROUTING", chainFirewall, "source ranges of load balancers", notEstablished, toPort(firewalled, f)),
			jump("mangle", "PREROUTING", chainBalancingFilter, "ports of virtual addresses that no Service uses", notEstablished),
			jump("mangle", "OUTPUT", chainClosed, "ports that are closed to the node itself", notEstablished),
			jump("filter", "INPUT", chainFilter, "packets that no rule has balanced", notEstablished),
			jump("filter", "FORWARD", ours.forward, "replies of Service endpoints"),
			jump("nat", "PREROUTING", ours.services, "Services"),
			jump("nat", "OUTPUT", chainOutput, "Services"),
			jump("nat", "POSTROUTING", ours.postrouting, "masquerading for Services"),
		},
	}
}

// untranslatedRules drop packets to served ports that reach the node itself. They belong to connections that began before the Service existed. The
// node would refuse these packets. If they are dropped, the client retransmits them, and nftables balances them once the agent has deleted the
// connection's conntrack entry.
func untranslatedRules(f inet.Family) (rs []kernel.Rule) {
	for _, set := range served {
		rs = append(rs, rule("a connection that began before the Service", kernel.Drop, toPort(set, f)))
	}
	return rs
}

// invalidRules drop packets that conntrack cannot assign to a connection. An endpoint's reply outside the window of its connection, for
// instance, would reach the client from the endpoint's own address, and the client would reset the connection
// (kubernetes/kubernetes#74839). IPVS translates such replies.
func invalidRules() []kernel.Rule {
	return []kernel.Rule{rule("a reply without translation would make the client reset its connection", kernel.Drop, kernel.Invalid{})}
}

// ownPacketRules reject the node's own packets that must not reach an endpoint, before they loop back to the node.
func ownPacketRules(f inet.Family) []kernel.Rule {
	const noEndpoint = "no endpoint for the node itself"
	rs := []kernel.Rule{rule("source ranges of load balancers", jumpTo(chainFirewall), toPort(firewalled, f))}
	for _, set := range []setRef{noLocal, refused} {
		rs = append(rs, rejectRules(f, noEndpoint, noEndpoint, toPort(set, f))...)
	}
	for _, set := range served {
		rs = append(rs, rule("a Service with endpoints", kernel.Return, toPort(set, f)))
	}
	rs = append(rs,
		rule("not a virtual address", kernel.Return, negated(toAddress(vips, f))),
		rule("allow ping", kernel.Return, kernel.Ping{Family: f}))
	return slices.Concat(rs, rejectRules(f, "only this error makes an SCTP client fail", "unserved port"))
}
