package doctor

import (
	"fmt"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// checkForward finds a firewall that drops what nftables balances: these packets are forwarded. (IPVS's leave through OUTPUT.)
func checkForward(f Facts) []finding.Finding {
	if !f.mode().NFTablesBalances() {
		return nil
	}
	const remedy = "accept the connections of Services there: `iptables -I FORWARD -m conntrack --ctstate DNAT -j ACCEPT`, in nftables `ct status dnat accept`"
	var dropped, unsure []string
	for _, family := range inet.Families {
		if l := f.Rules[family]; l.Policies[forward] == "DROP" && !acceptsForwarded(l) {
			dropped = append(dropped, fmt.Sprintf("%s: -P FORWARD DROP, and no rule of %d accepts them", family, len(l.Rules[forward])))
		}
	}
	for _, c := range f.Chains {
		switch {
		case c.Hook != kernel.HookForward || !c.Drops:
		case c.Rules == 0:
			dropped = append(dropped, c.String())
		default:
			unsure = append(unsure, fmt.Sprintf("%s (%d rules)", c, c.Rules))
		}
	}
	var found []finding.Finding
	if len(dropped) > 0 {
		found = append(found, finding.New(finding.Broken, "FORWARD", "the policy drops the packets of every Service", examples(dropped), remedy))
	}
	if len(unsure) > 0 {
		found = append(found, finding.New(finding.Warning, "FORWARD", "the policy drops the packets of Services that no rule accepts; doctor does not evaluate these rules",
			examples(unsure), "look at them; the evidence is the command that shows them. If nothing accepts connections to pods, "+remedy))
	}
	return found
}

var forward = kernel.ChainID{Table: "filter", Chain: "FORWARD"}

// acceptsForwarded reports whether a rule of FORWARD, or of a chain to which it leads, accepts new connections of Services at any interface.
func acceptsForwarded(l kernel.RuleListing) bool {
	seen := map[string]bool{}
	for next := []string{forward.Chain}; len(next) > 0; next = next[1:] {
		if seen[next[0]] {
			continue
		}
		seen[next[0]] = true
		for _, rule := range l.Rules[kernel.ChainID{Table: forward.Table, Chain: next[0]}] {
			switch v := rule.Rule.Verdict.(type) {
			case kernel.Final:
				if v == kernel.Accept && matchesForwarded(rule.Rule) {
					return true
				}
			case kernel.JumpTo:
				next = append(next, string(v))
			}
		}
	}
	return false
}

// matchesForwarded reports whether a rule matches the first packet of a connection that is translated, at any interface. It ignores
// conditions that can match such packets.
func matchesForwarded(r kernel.Rule) bool {
	return !slices.ContainsFunc(r.Conditions, func(c kernel.Condition) bool {
		negated, not := c.(kernel.Negated)
		if not {
			c = negated.Condition
		}
		switch c := c.(type) {
		case kernel.Arrives, kernel.Leaves:
			return true
		case kernel.Established:
			return not == c.Not
		case kernel.States:
			return not == (slices.Contains(c, "NEW") || slices.Contains(c, "DNAT"))
		}
		return false
	})
}
