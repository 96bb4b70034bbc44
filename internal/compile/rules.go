package compile

import (
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// These chains do not exist in kube-proxy, or kube-proxy leaves jumps to them behind.
var (
	chainFilter = kernel.ChainID{Table: "filter", Chain: "KUBE-IPVS-FILTER"}
	// kube-proxy's KUBE-PROXY-FIREWALL is in the filter table, but the node's own packets reach IPVS before that table.
	chainFirewall = kernel.ChainID{Table: "mangle", Chain: "KUBE-IPVS-FIREWALL"}
	chainClosed   = kernel.ChainID{Table: "mangle", Chain: "KUBE-IPVS-CLOSED"}
	chainEgress   = kernel.ChainID{Table: "nat", Chain: "KUBE-IPVS-EGRESS"}
	// Only packets to a guarded port or a ClusterIP's port traverse these two chains.
	chainGuards    = kernel.ChainID{Table: "filter", Chain: "KUBE-IPVS-GUARDS"}
	chainClusterIP = kernel.ChainID{Table: "nat", Chain: "KUBE-IPVS-CLUSTER-IP"}
	// Only the node's own packets traverse this chain.
	chainOutput = kernel.ChainID{Table: "nat", Chain: "KUBE-IPVS-OUTPUT"}
	// These are kube-proxy's chains. kube-proxy leaves its jumps to them behind, and their rules enforce the source ranges that were in force when it
	// stopped. We keep the chains empty. Otherwise a range added later would have no effect.
	chainProxyFirewall  = kernel.ChainID{Table: "filter", Chain: "KUBE-PROXY-FIREWALL"}
	chainProxyOutFilter = kernel.ChainID{Table: "filter", Chain: "KUBE-IPVS-OUT-FILTER"}
)

// chains are our chains that also exist in kube-proxy.
type chains struct{ services, postrouting, markMasq, forward kernel.ChainID }

var (
	// An agent that replaces kube-proxy uses its names. Each chain has the same meaning in both programs, and iptables-restore replaces a
	// chain atomically. The program that starts last replaces the other's rules, so every packet traverses one complete set of rules.
	instead = chains{
		services:    kernel.ChainID{Table: "nat", Chain: "KUBE-SERVICES"},
		postrouting: kernel.ChainID{Table: "nat", Chain: "KUBE-POSTROUTING"},
		markMasq:    kernel.ChainID{Table: "nat", Chain: "KUBE-MARK-MASQ"},
		forward:     kernel.ChainID{Table: "filter", Chain: "KUBE-FORWARD"},
	}
	// If kube-proxy keeps running, its chains are in use.
	beside = chains{
		services:    kernel.ChainID{Table: "nat", Chain: "KUBE-IPVS-SERVICES"},
		postrouting: kernel.ChainID{Table: "nat", Chain: "KUBE-IPVS-POSTROUTING"},
		markMasq:    kernel.ChainID{Table: "nat", Chain: "KUBE-IPVS-MARK-MASQ"},
		forward:     kernel.ChainID{Table: "filter", Chain: "KUBE-IPVS-FORWARD"},
	}
)

func (cfg Config) chains() chains {
	if cfg.SideBySide {
		return beside
	}
	return instead
}

func (c chains) list() []kernel.ChainID {
	return []kernel.ChainID{c.forward, c.markMasq, c.postrouting, c.services}
}

// Chains lists every chain that may be ours. Tags on the rules show whether a chain with one of kube-proxy's names is
// ours.
var Chains = slices.Concat([]kernel.ChainID{chainFilter, chainGuards, chainFirewall, chainClosed, chainEgress, chainClusterIP, chainOutput,
	chainProxyFirewall, chainProxyOutFilter, chainBalancingFilter, chainBalancingGuards},
	instead.list(), beside.list())

func jump(table, chain string, to kernel.ChainID, why string, conditions ...kernel.Condition) kernel.Jump {
	return kernel.Jump{ChainID: kernel.ChainID{Table: table, Chain: chain}, Rule: rule(why, jumpTo(to), conditions...)}
}

func rule(why string, verdict kernel.Verdict, conditions ...kernel.Condition) kernel.Rule {
	return kernel.Rule{Why: why, Conditions: conditions, Verdict: verdict}
}

func jumpTo(c kernel.ChainID) kernel.Verdict { return kernel.JumpTo(c.Chain) }

func toPort(r setRef, f inet.Family) kernel.InSet {
	return kernel.InSet{Set: r.in(f), Key: kernel.KeyDestinationPort}
}

func toAddress(r setRef, f inet.Family) kernel.InSet {
	return kernel.InSet{Set: r.in(f), Key: kernel.KeyDestination}
}

func fromClient(r setRef, f inet.Family) kernel.InSet {
	return kernel.InSet{Set: r.in(f), Key: kernel.KeyDestinationClient}
}

func negated(m kernel.InSet) kernel.InSet {
	m.Not = true
	return m
}

// servicesRules decide, for the first packet of a connection, whether the endpoint sees the node as the client.
func servicesRules(cfg Config, f inet.Family) []kernel.Rule {
	return []kernel.Rule{
		rule("a ClusterIP", jumpTo(chainClusterIP), toPort(clusterIPs, f)),
		// The endpoint and the client may be anywhere, so the reply must return through this node.
		rule("external traffic policy Cluster", jumpTo(cfg.chains().markMasq), toPort(masqueraded, f)),
		// The kernel considers virtual addresses local, so rules for local ports (such as hostPorts or Docker's) would
		// match them.
		rule("no other rule redirects a Service", cfg.serveVerdict(), toPort(external, f)),
		rule("unserved port; NAT rules skipped", kernel.Accept, toAddress(vips, f)),
	}
}

// clusterIPRules match only packets to the served ports of ClusterIPs.
func clusterIPRules(cfg Config, f inet.Family) []kernel.Rule {
	masquerade := jumpTo(cfg.chains().markMasq)
	var rs []kernel.Rule
	if cfg.MasqueradeAll {
		rs = append(rs, rule("every client is masqueraded", masquerade))
	} else if local := cfg.Local.local(f); len(local) > 0 {
		for _, match := range local {
			rs = append(rs, rule("pods keep their address", cfg.serveVerdict(), match))
		}
		rs = append(rs, rule("client is not a pod", masquerade))
	}
	return append(rs, rule("no other rule redirects a Service", cfg.serveVerdict()))
}

// MasqueradesAll reports whether every client of a port is masqueraded.
func (cfg Config) MasqueradesAll(have *kernel.State, port kernel.ServerKey) bool {
	return have.HasMember(masqueraded.port(port)) || cfg.MasqueradeAll && have.HasMember(clusterIPs.port(port))
}

// outputRules match the node's own packets, whose source is often their own destination address. If that address is virtual, replies do not
// return to this node. If it is the node's own, other nodes may have no route to it.
func outputRules(cfg Config, f inet.Family) []kernel.Rule {
	masquerade := jumpTo(cfg.chains().markMasq)
	fromVirtual := kernel.InSet{Set: vips.in(f), Key: kernel.KeySource}
	return []kernel.Rule{
		rule("the kernel picked a virtual address as this node's own source", masquerade, fromVirtual, toPort(clusterIPs, f)),
		rule("the endpoint may not know this node's address", masquerade, toPort(external, f)),
		rule("Services", jumpTo(cfg.chains().services)),
	}
}

func markRules(cfg Config) []kernel.Rule {
	return []kernel.Rule{rule("masquerade when leaving", kernel.SetMark(cfg.mark()))}
}

func (cfg Config) mark() uint32 { return 1 << cfg.MasqueradeBit }

// postroutingRules match packets after IPVS has set the endpoint's address as their destination.
func postroutingRules(cfg Config, f inet.Family) []kernel.Rule {
	return append(fromPods(cfg, f),
		rule("a pod connects to itself through a Service", masquerading, fromClient(hairpin, f)),
		rule("not marked for masquerading", kernel.Return, kernel.Marked{Bits: cfg.mark(), Not: true}),
		rule("clear the mark", kernel.FlipMark(cfg.mark())),
		rule("marked for masquerading", masquerading),
	)
}

// fromPods sends pods' packets to the rules for packets that leave the cluster.
func fromPods(cfg Config, f inet.Family) []kernel.Rule {
	var rs []kernel.Rule
	if !cfg.Egress.Masquerade {
		return nil
	}
	for _, cidr := range cfg.Local.CIDRs {
		if inet.FamilyOf(cidr.Addr()) == f {
			rs = append(rs, rule("from a pod", jumpTo(chainEgress), kernel.From{Prefix: cidr.Masked()}))
		}
	}
	return rs
}

// egressRules masquerade pods' packets to destinations outside the cluster. Pod ranges and this node's own addresses are inside.
func egressRules(cfg Config, f inet.Family) []kernel.Rule {
	if !cfg.Egress.Masquerade {
		return nil
	}
	rs := []kernel.Rule{rule("to this node", kernel.Return, kernel.ToThisNode{})}
	for _, inside := range slices.Concat(cfg.Local.CIDRs, cfg.Egress.Except) {
		if inet.FamilyOf(inside.Addr()) == f {
			rs = append(rs, rule("destination sees the pod's address", kernel.Return, kernel.To{Prefix: inside.Masked()}))
		}
	}
	return append(rs, rule("leaves the cluster", masquerading))
}

var masquerading = kernel.Masquerade{RandomPort: true}

// filterRules keep this node's own ports closed on virtual addresses. Otherwise a daemon that listens on every address would answer there, because
// these addresses are local.
func filterRules(cfg Config, f inet.Family) []kernel.Rule {
	rs := []kernel.Rule{
		// Our own jump skips established connections, but a jump that kube-proxy left behind does not, and must not interrupt them.
		rule("established connections pass", kernel.Return, kernel.Established{}),
		// Most packets are for ClusterIPs. The only guard of a ClusterIP is for ports that take no connections, and these are not in the set.
		rule("a Service with endpoints", cfg.acceptVerdict(), toPort(clusterIPs, f)),
		// This rule precedes the one for other served ports, because their guards admit some clients.
		rule("a port that is not open to every client", jumpTo(chainGuards), toPort(guarded, f)),
		rule("a Service with endpoints", cfg.acceptVerdict(), toPort(external, f)),
	}
	if cfg.AcceptServices {
		rs = append(rs, rule("health checks of load balancers", kernel.Accept, toPort(healthPorts, f)))
	}
	rs = append(rs,
		rule("not a virtual address", kernel.Return, negated(toAddress(vips, f))),
		rule("allow ping", kernel.Return, kernel.Ping{Family: f}))
	return append(rs, rejectRules(f, "only this error makes an SCTP client fail", "unserved port")...)
}

// rejectRules reject matching packets with the error that makes clients fail immediately.
func rejectRules(f inet.Family, whySCTP, why string, conditions ...kernel.Condition) []kernel.Rule {
	unreachable, sctp := kernel.PortUnreachable, kernel.ProtocolUnreachable
	if f == inet.IPv6 {
		// No ICMPv6 error makes an SCTP client fail immediately. The port error describes the cause best.
		unreachable, sctp = kernel.PortUnreachable6, kernel.PortUnreachable6
	}
	return []kernel.Rule{
		rule(whySCTP, sctp, append(slices.Clone(conditions), kernel.OfProtocol{Protocol: inet.SCTP})...),
		rule(why, unreachable, conditions...),
	}
}

// acceptVerdict is the verdict for packets to Services in INPUT. Return leaves the packets to the other rules of the node.
func (cfg Config) acceptVerdict() kernel.Verdict {
	if cfg.AcceptServices {
		return kernel.Accept
	}
	return kernel.Return
}

// guardRules match only packets to guarded ports. They drop packets that would get no reply, or a reply that bypasses this node, and reject
// packets to node ports without endpoints.
func guardRules(cfg Config, f inet.Family) []kernel.Rule {
	inside := toPort(insideOnly, f)
	rs := []kernel.Rule{rule("internal traffic policy Local, no endpoint on this node", kernel.Drop, toPort(noLocal, f))}
	for _, match := range cfg.Local.local(f) {
		rs = append(rs, rule("pods reach endpoints on other nodes", cfg.acceptVerdict(), inside, match))
	}
	rs = append(rs, rule("external traffic policy Local, no endpoint on this node", kernel.Drop, inside))
	const why = "node port without endpoints"
	return append(rs, rejectRules(f, why, why, toPort(refused, f))...)
}

// firewallRules drop packets to load balancer addresses from clients outside the source ranges before IPVS sees them.
func firewallRules(f inet.Family) []kernel.Rule {
	return []kernel.Rule{rule("client is in none of the Service's source ranges", kernel.Drop, toPort(firewalled, f), negated(fromClient(allowed, f)))}
}

// serveVerdict is the verdict for a new connection to a served port in the nat table. IPVS balances the connection
// later, and nftables balances it immediately.
func (cfg Config) serveVerdict() kernel.Verdict {
	if cfg.Mode.NFTablesBalances() {
		return kernel.Balance{}
	}
	return kernel.Accept
}

// If nftables balances, packets get their endpoint's address before they are routed, so they never reach INPUT. The chains that close ports must
// therefore match packets earlier. They have the same effect as the chains with the same names in the filter table.
var (
	chainBalancingFilter = kernel.ChainID{Table: "mangle", Chain: chainFilter.Chain}
	chainBalancingGuards = kernel.ChainID{Table: "mangle", Chain: chainGuards.Chain}
)
