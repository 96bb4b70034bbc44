package kernel

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
)

// ChainID names a chain of one table.
type ChainID struct {
	Table string // filter, mangle, nat
	Chain string
}

func (c ChainID) String() string { return c.Table + " " + c.Chain }

// Chain is an owned chain with its rules in order.
type Chain struct {
	ChainID
	Rules []Rule
}

// Jump is an owned rule in a built-in chain.
type Jump struct {
	ChainID
	Rule
}

// TagPrefix starts the comment of every owned rule.
const TagPrefix = "kube-ipvs:"

// tagBytes is the length of the hash in a tag, which has two hexadecimal digits per byte.
const tagBytes = 5

// Tag identifies the rule in the kernel. iptables-save prints a rule differently from how it was written (order, masks, defaults), so rules
// are compared by this hash of their text, which is part of their comment.
func (r Rule) Tag() string { return TagFor(r.Args(), r.Why) }

// TagFor returns the tag of a rule with these arguments and this reason.
func TagFor(args []string, why string) string {
	sum := sha256.Sum256([]byte(strings.Join(args, "\x00") + "\x00" + why))
	return TagPrefix + hex.EncodeToString(sum[:tagBytes])
}

// Comment returns the text of the rule's comment: its tag and the reason.
func (r Rule) Comment() string { return r.Tag() + " " + r.Why }

// TagOf finds the tag in a rule's comment; it is empty for a foreign rule. Only the prefix followed by a complete hash is a tag, because an
// operator may write "kube-ipvs: ..." in the comment of another rule.
func TagOf(comment string) string {
	tag, _, _ := strings.Cut(comment, " ")
	hash, ours := strings.CutPrefix(tag, TagPrefix)
	if sum, err := hex.DecodeString(hash); !ours || err != nil || len(sum) != tagBytes {
		return ""
	}
	return tag
}

// Ruleset contains everything that the agent owns in iptables for one family. It names every owned chain, even an empty one. A chain that it
// omits keeps its rules in iptables, where they may be kube-proxy's. In nftables, where the whole table is the agent's, the chain is
// deleted.
type Ruleset struct {
	Family inet.Family
	Chains []Chain
	Jumps  []Jump
}

// The places where a node can keep the agent's sets and rules: ipset and iptables, or nftables. With RulesAuto, the choice depends on the
// node's programs and kernel. A data plane in user space has RulesNone.
const (
	RulesAuto     = "auto"
	RulesIPTables = "iptables"
	RulesNFTables = "nftables"
	RulesNone     = "none"
)

// The data planes that can balance connections: IPVS, maps in nftables, or the agent's process. With DataPlaneAuto,
// nftables balances if the kernel has no IPVS.
const (
	DataPlaneAuto      = "auto"
	DataPlaneIPVS      = "ipvs"
	DataPlaneNFTables  = "nftables"
	DataPlaneUserspace = "userspace"
)

// OldRules are sets and rules that a previous run of the agent left behind in a variant that the agent no longer uses: the other iptables
// variant ("nft" or "legacy"), "ipset", or "nftables". The kernel applies old rules together with the current ones. Verb: Delete.
type OldRules struct {
	Variant string
	Family  inet.Family // only for iptables
}

func (r OldRules) String() string {
	switch r.Variant {
	case OldSets:
		return "the agent's ipsets"
	case RulesNFTables:
		return "the agent's nftables table"
	}
	return fmt.Sprintf("%s chains in iptables-%s", r.Family, r.Variant)
}

// OldSets is the variant of OldRules for ipsets.
const OldSets = "ipset"

// View is the part of a ruleset that can be read back: the tags of all rules in each owned chain, in order ("" for a foreign rule), and the
// tags of the owned jumps in each built-in chain.
func (r Ruleset) View() RulesView {
	v := RulesView{Chains: map[ChainID][]string{}, Jumps: map[ChainID][]string{}}
	for _, c := range r.Chains {
		tags := make([]string, len(c.Rules))
		for i, rule := range c.Rules {
			tags[i] = rule.Tag()
		}
		v.Chains[c.ChainID] = tags
	}
	for _, j := range r.Jumps {
		v.Jumps[j.ChainID] = append(v.Jumps[j.ChainID], j.Tag())
	}
	return v
}

// RulesView is the part of a Ruleset that can be read back from the kernel.
type RulesView struct {
	Chains map[ChainID][]string
	Jumps  map[ChainID][]string
	// Foreign contains the rules of other programs in owned chains, as iptables-save prints them.
	Foreign map[ChainID][]string
	// Ahead contains the rules of other programs that accept packets before an owned jump in a built-in chain whose
	// order matters. These packets never reach the jump. In nftables, the agent also owns the built-in chains, so
	// Ahead contains every rule that another program added to them.
	Ahead map[ChainID][]string
}

// OrderDecides reports whether an owned jump in this built-in chain must come before all rules that accept packets. In the nat table, an
// accepting rule before the jump ends the evaluation for a new connection: no other rule masquerades it, and the client gets no reply. In
// the mangle table, such a rule admits clients outside a Service's source ranges. In the filter table, a firewall may accept any packet.
func (c ChainID) OrderDecides() bool { return c.Table == "nat" || c.Table == "mangle" }

// EndsChain reports whether a packet that matches a rule of a built-in chain skips the rest of the chain, but still traverses other
// chains.
func EndsChain(target string) bool { return target == "ACCEPT" || target == "RETURN" }

// Holds reports whether the kernel's view v includes want. Owned chains must be equal. Built-in chains may contain
// other rules but, where order matters, none that accepts packets before an owned jump.
func (v RulesView) Holds(want RulesView) bool { return len(v.Lacks(want)) == 0 }

// Lacks returns the chains in which the kernel's view v differs from want, in no particular order.
func (v RulesView) Lacks(want RulesView) (chains []ChainID) {
	for id, tags := range want.Chains {
		have, ok := v.Chains[id]
		if !ok || !slices.Equal(have, tags) {
			chains = append(chains, id)
		}
	}
	for id, tags := range want.Jumps {
		if len(v.Ahead[id]) > 0 || slices.ContainsFunc(tags, func(tag string) bool { return !slices.Contains(v.Jumps[id], tag) }) {
			chains = append(chains, id)
		}
	}
	return chains
}
