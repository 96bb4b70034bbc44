package kernel

import (
	"fmt"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
)

// RuleListing contains all iptables rules of a family. It includes foreign rules, because they also determine the path of a packet.
type RuleListing struct {
	// Policies contains the policies of the built-in chains.
	Policies map[ChainID]string
	// Rules contains the rules of each chain in order. A chain without rules has an entry.
	Rules map[ChainID][]SavedRule
}

// Recognize looks for listed rules with the same tag as a rule in the ruleset, and replaces them with that rule.
func (l RuleListing) Recognize(r Ruleset) {
	ours := map[string]Rule{}
	for _, c := range r.Chains {
		for _, rule := range c.Rules {
			ours[rule.Tag()] = rule
		}
	}
	for _, j := range r.Jumps {
		ours[j.Tag()] = j.Rule
	}
	for _, rules := range l.Rules {
		for i := range rules {
			if rule, known := ours[rules[i].Tag]; known {
				rules[i].Rule = rule
			}
		}
	}
}

// SavedRule is a rule as iptables-save prints it.
type SavedRule struct {
	ChainID
	// Spec is the rule without its chain. iptables-restore accepts it unchanged.
	Spec string
	// Rule is the parsed rule. Tag is the agent's tag; it is empty for another program's rule. Only listings set both
	// fields.
	Rule Rule
	Tag  string
}

// Args returns the rule as arguments of the iptables command.
func (r SavedRule) Args() []string { return SplitRule(r.Spec) }

// String prints the rule as iptables-save does, with its table.
func (r SavedRule) String() string { return fmt.Sprintf("-t %s -A %s %s", r.Table, r.Chain, r.Spec) }

// SplitRule splits a line of iptables-save as iptables-restore does: at white space, except between double quotes, where a backslash escapes
// the next character.
func SplitRule(line string) []string {
	var words []string
	var word strings.Builder
	inWord, quoted, escaped := false, false, false
	for _, c := range []byte(line) {
		switch {
		case escaped:
			word.WriteByte(c)
			escaped = false
		case quoted && c == '\\':
			escaped = true
		case c == '"':
			quoted, inWord = !quoted, true
		case !quoted && (c == ' ' || c == '\t' || c == '\n'):
			if inWord {
				words = append(words, word.String())
				word.Reset()
				inWord = false
			}
		default:
			word.WriteByte(c)
			inWord = true
		}
	}
	if inWord {
		words = append(words, word.String())
	}
	return words
}

// BaseChain is an nftables chain that is attached to a hook. iptables does not show it.
type BaseChain struct {
	// Family is ip, ip6 or inet, as in nftables.
	Family, Table, Name string
	Hook                Hook
	Priority            int32
	// Kind is filter, nat or route. Only the first packet of a connection traverses chains of kind nat.
	Kind string
	// Drops is true if the chain's policy is drop.
	Drops bool
	Rules uint32
}

// Covers reports whether packets of the family traverse the chain.
func (c BaseChain) Covers(f inet.Family) bool {
	return c.Family == "inet" || c.Family == map[inet.Family]string{inet.IPv4: "ip", inet.IPv6: "ip6"}[f]
}

// String returns the command that shows the chain.
func (c BaseChain) String() string {
	return fmt.Sprintf("nft list chain %s %s %s", c.Family, c.Table, c.Name)
}

// Hook is a netfilter hook, as linux/netfilter.h numbers it.
type Hook uint32

// The hooks that packets to virtual servers traverse.
const (
	HookPrerouting  Hook = 0
	HookInput       Hook = 1
	HookForward     Hook = 2 // only if nftables balances
	HookOutput      Hook = 3
	HookPostrouting Hook = 4
	// HookOther is ingress, and every hook of the families bridge and netdev. Packets traverse these hooks before the
	// others.
	HookOther Hook = 5
)
