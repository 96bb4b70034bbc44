package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// checkForward finds a firewall that drops new connections to pods in FORWARD: connections that nftables balances on
// this node, or that other nodes have balanced to this node's pods. (Connections that IPVS balances on this node pass
// OUTPUT instead.)
func checkForward(f Facts) []finding.Finding {
	if !f.mode().NFTablesBalances() && !slices.ContainsFunc(f.Interfaces, f.podInterface) {
		return nil
	}
	dropped, accept := f.droppedByPolicy(f.Rules, "")
	droppedByLegacy, acceptInLegacy := f.droppedByPolicy(f.Legacy, "-legacy")
	dropped, accept = append(dropped, droppedByLegacy...), append(accept, acceptInLegacy...)
	var unsure []string
	for _, c := range f.Chains {
		rule := fmt.Sprintf("nft insert rule %s %s %s ct status dnat accept", c.Family, finding.Word(c.Table), finding.Word(c.Name))
		switch {
		case c.Hook != kernel.HookForward || !c.Drops:
		case c.Rules == 0:
			dropped, accept = append(dropped, c.String()), append(accept, rule)
		default:
			unsure = append(unsure, fmt.Sprintf("%s (%d rules)", c, c.Rules))
		}
	}
	what, remedy := "packets to pods",
		"accept connections to pods in this chain: `iptables -I FORWARD -d PODS -j ACCEPT`, in nftables `ip daddr PODS accept`; network plugins usually add such a rule"
	if len(droppedByLegacy) > 0 {
		remedy += "; in iptables-legacy `iptables-legacy -I FORWARD -d PODS -j ACCEPT`"
	}
	if f.mode().NFTablesBalances() {
		what, remedy = "packets of every Service", "accept connections to Services in this chain: "+run(accept)+
			", and add the rule to the firewall's configuration"
	}
	if len(dropped) > 0 {
		return finding.One(finding.Broken, "FORWARD", "the policy drops the "+what, examples(dropped), remedy)
	}
	if len(unsure) > 0 && !f.mode().NFTablesBalances() {
		return finding.One(finding.Notice, "FORWARD", "the policy drops "+what+" from other nodes unless a rule accepts them; doctor does not check the rules",
			examples(unsure), "nothing to do if a rule accepts connections to pods; otherwise "+remedy)
	}
	return nil
}

var forward = kernel.ChainID{Table: "filter", Chain: "FORWARD"}

// droppedByPolicy returns the families whose policy drops new connections to pods, and the commands that accept them. The suffix belongs to the
// name of the program whose rules these are.
func (f *Facts) droppedByPolicy(rules map[inet.Family]kernel.RuleListing, suffix string) (dropped, accept []string) {
	for _, family := range inet.Families {
		l, program, in := rules[family], kernel.Programs(family)+suffix, family.String()
		if l.Policies[forward] != "DROP" || f.acceptsForwarded(l) {
			continue
		}
		if suffix != "" {
			in += ", " + program
		}
		dropped = append(dropped, fmt.Sprintf("%s: -P FORWARD DROP, and none of its rules (%d) accepts them", in, len(l.Rules[forward])))
		accept = append(accept, program+" -I FORWARD -m conntrack --ctstate DNAT -j ACCEPT")
	}
	return dropped, accept
}

// acceptsForwarded reports whether a rule in FORWARD, or in a chain that FORWARD jumps to, accepts new connections from
// an uplink to pods.
func (f *Facts) acceptsForwarded(l kernel.RuleListing) bool {
	seen := map[string]bool{}
	for next := []string{forward.Chain}; len(next) > 0; next = next[1:] {
		if seen[next[0]] {
			continue
		}
		seen[next[0]] = true
		for _, rule := range l.Rules[kernel.ChainID{Table: forward.Table, Chain: next[0]}] {
			if !f.matchesForwarded(rule.Rule) {
				continue
			}
			switch v := rule.Rule.Verdict.(type) {
			case kernel.Final:
				if v == kernel.Accept && rule.Tag == "" {
					return true
				}
			case kernel.JumpTo:
				next = append(next, string(v))
			case kernel.GoTo:
				next = append(next, string(v))
			}
		}
	}
	return false
}

// matchesForwarded reports whether a rule matches the first packet of a connection from an uplink to a pod. Conditions
// that it does not check are assumed to match.
func (f *Facts) matchesForwarded(r kernel.Rule) bool {
	return !slices.ContainsFunc(r.Conditions, func(c kernel.Condition) bool {
		negated, not := c.(kernel.Negated)
		if not {
			c = negated.Condition
		}
		switch c := c.(type) {
		case kernel.Arrives:
			return not == slices.ContainsFunc(f.Uplinks, func(name string) bool { return matchesName(name, c.Interface, c.Prefix) })
		case kernel.Leaves:
			return not == slices.ContainsFunc(f.Interfaces, func(i kernel.Interface) bool { return f.podInterface(i) && matchesName(i.Name, c.Interface, c.Prefix) })
		case kernel.OfProtocol:
			return !not && !slices.Contains(protocols, c.Protocol)
		case kernel.Ping, kernel.NotOurs:
			return !not
		case kernel.Established:
			return not == c.Not
		case kernel.States:
			// Only this node's nftables sets the status DNAT. Packets that another node's IPVS has balanced do not have it here.
			return not == (slices.Contains(c, "NEW") || slices.Contains(c, "DNAT") && f.mode().NFTablesBalances())
		}
		return false
	})
}

// protocols are those of Services.
var protocols = []inet.Protocol{inet.TCP, inet.UDP, inet.SCTP}

func matchesName(name, pattern string, prefix bool) bool {
	return name == pattern || prefix && strings.HasPrefix(name, pattern)
}
