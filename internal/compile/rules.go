package compile

import (
	"fmt"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Our chains. The names are kube-proxy's: each has the same meaning there, and because iptables-restore replaces a chain in
// one step, whichever of the two agents starts takes the other's rules over without a packet seeing neither.
var (
	chainServices    = kernel.ChainID{Table: "nat", Chain: "KUBE-SERVICES"}
	chainPostrouting = kernel.ChainID{Table: "nat", Chain: "KUBE-POSTROUTING"}
	chainMarkMasq    = kernel.ChainID{Table: "nat", Chain: "KUBE-MARK-MASQ"}
	chainFilter      = kernel.ChainID{Table: "filter", Chain: "KUBE-IPVS-FILTER"}
	chainForward     = kernel.ChainID{Table: "filter", Chain: "KUBE-FORWARD"}
)

// Chains lists every chain of ours.
var Chains = []kernel.ChainID{chainFilter, chainForward, chainMarkMasq, chainPostrouting, chainServices}

// rules compiles the ruleset of a family. It does not depend on any Service: what changes is in sets.
func rules(cfg Config, f inet.Family) kernel.Ruleset {
	return kernel.Ruleset{
		Family: f,
		Chains: []kernel.Chain{
			{ChainID: chainFilter, Rules: filterRules(f)},
			{ChainID: chainForward, Rules: forwardRules()},
			{ChainID: chainMarkMasq, Rules: markRules(cfg)},
			{ChainID: chainPostrouting, Rules: postroutingRules(cfg, f)},
			{ChainID: chainServices, Rules: servicesRules(cfg, f)},
		},
		Jumps: jumps(),
	}
}

func jumps() []kernel.Jump {
	nat, filter := "nat", "filter"
	return []kernel.Jump{
		// Packets of established connections leave INPUT after this one match.
		jump(filter, "INPUT", chainFilter, "ports of virtual addresses that no Service uses",
			"-m", "conntrack", "!", "--ctstate", "RELATED,ESTABLISHED"),
		jump(filter, "FORWARD", chainForward, "replies of Service endpoints"),
		jump(nat, "PREROUTING", chainServices, "Services"),
		jump(nat, "OUTPUT", chainServices, "Services"),
		jump(nat, "POSTROUTING", chainPostrouting, "masquerading for Services"),
	}
}

func jump(table, chain string, to kernel.ChainID, why string, match ...string) kernel.Jump {
	return kernel.Jump{
		ChainID: kernel.ChainID{Table: table, Chain: chain},
		Rule:    kernel.Rule{Why: why, Args: append(match, "-j", to.Chain)},
	}
}

func rule(why string, args ...string) kernel.Rule { return kernel.Rule{Why: why, Args: args} }

func matchSet(r setRef, f inet.Family, dirs string) []string {
	return []string{"-m", "set", "--match-set", r.in(f), dirs}
}

func join(parts ...[]string) []string {
	var all []string
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

// servicesRules decide, for the first packet of a connection, whether the endpoint shall see the node as the client.
func servicesRules(cfg Config, f inet.Family) []kernel.Rule {
	toService := matchSet(clusterIPs, f, "dst,dst")
	masquerade, accept := []string{"-j", chainMarkMasq.Chain}, []string{"-j", "ACCEPT"}
	var rs []kernel.Rule
	if cfg.MasqueradeAll {
		rs = append(rs, rule("every client is masqueraded", join(toService, masquerade)...))
	} else {
		rs = append(rs, rule("the kernel picked a virtual address as this node's own source",
			join(toService, matchSet(vips, f, "src"), masquerade)...))
		local := cfg.Local.local(f)
		for _, match := range local {
			rs = append(rs, rule("pods keep their address", join(toService, match, accept)...))
		}
		if len(local) > 0 {
			rs = append(rs, rule("client is not a pod", join(toService, masquerade)...))
		}
	}
	// Virtual addresses are local ones to the kernel, so rules for local ports (hostPorts, Docker's) would match them.
	return append(rs, rule("no other rule redirects a Service", join(toService, accept)...))
}

func markRules(cfg Config) []kernel.Rule {
	return []kernel.Rule{rule("masquerade when leaving", "-j", "MARK", "--or-mark", cfg.mark())}
}

// mark is the mark bit as the number iptables takes.
func (cfg Config) mark() string { return fmt.Sprintf("0x%x", uint32(1)<<cfg.MasqueradeBit) }

// postroutingRules meet the packet after IPVS has put the endpoint's address into it.
func postroutingRules(cfg Config, f inet.Family) []kernel.Rule {
	mark := cfg.mark()
	masquerade := []string{"-j", "MASQUERADE"}
	if cfg.RandomFully {
		masquerade = append(masquerade, "--random-fully")
	}
	return []kernel.Rule{
		rule("a pod reached itself: it must not answer itself directly",
			join(matchSet(hairpin, f, "dst,dst,src"), masquerade)...),
		rule("not marked for masquerading", "-m", "mark", "!", "--mark", mark+"/"+mark, "-j", "RETURN"),
		rule("the mark has done its work", "-j", "MARK", "--xor-mark", mark),
		rule("marked for masquerading", masquerade...),
	}
}

// filterRules keep this node's own ports closed on virtual addresses: they are local addresses, so a daemon that listens on
// every address would answer there.
func filterRules(f inet.Family) []kernel.Rule {
	icmp, unreachable, sctpReject := "icmp", "icmp-port-unreachable", "icmp-proto-unreachable"
	if f == inet.IPv6 {
		// No ICMPv6 error makes an SCTP client fail at once; the port error is the one that says what is wrong.
		icmp, unreachable, sctpReject = "ipv6-icmp", "icmp6-port-unreachable", "icmp6-port-unreachable"
	}
	return []kernel.Rule{
		rule("not a virtual address", "-m", "set", "!", "--match-set", vips.in(f), "dst", "-j", "RETURN"),
		rule("a Service with endpoints", join(matchSet(clusterIPs, f, "dst,dst"), []string{"-j", "RETURN"})...),
		rule("ping works", "-p", icmp, "-j", "RETURN"),
		rule("only this error stops an SCTP client at once",
			"-p", "sctp", "-j", "REJECT", "--reject-with", sctpReject),
		rule("nobody serves this port", "-j", "REJECT", "--reject-with", unreachable),
	}
}

// forwardRules let replies through where the node's policy is to drop: requests reach endpoints through OUTPUT, replies come
// back through FORWARD.
func forwardRules() []kernel.Rule {
	return []kernel.Rule{rule("replies of Service endpoints", "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED", "-j", "ACCEPT")}
}
