package iptables

import (
	"cmp"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// render writes the text for `restore --noflush` that creates our chains, inserts the missing jumps at the top of their chains in the given
// order, and deletes the stale jumps.
//
// Restore is atomic per table, not for the whole text, and the filter table comes first. If a later table fails, ports of virtual addresses
// are closed too early, which is harmless. In the opposite order, this host's daemons would answer on these ports. Within a table, no
// packet sees an intermediate state, so the order there does not matter.
func render(r kernel.Ruleset, missing []kernel.Jump, stale []kernel.SavedRule) string {
	var b strings.Builder
	for _, table := range tablesOf(r, stale) {
		b.WriteString("*" + table + "\n")
		renderChains(&b, table, r.Chains)
		for _, s := range stale {
			if s.Table == table {
				writeLine(&b, "-D", s.Chain, s.Spec)
			}
		}
		// Each jump is inserted at the top, so start with the last one.
		for _, j := range slices.Backward(missing) {
			if j.Table == table {
				writeLine(&b, "-I", j.Chain, "1", ruleText(j.Rule))
			}
		}
		b.WriteString("COMMIT\n")
	}
	return b.String()
}

// renderChains declares all chains before their rules, because they jump to each other. Declaring an existing chain empties it.
func renderChains(b *strings.Builder, table string, chains []kernel.Chain) {
	for _, c := range chains {
		if c.Table == table {
			b.WriteString(":" + c.Chain + " - [0:0]\n")
		}
	}
	for _, c := range chains {
		for _, rule := range c.Rules {
			if c.Table == table {
				writeLine(b, "-A", c.Chain, ruleText(rule))
			}
		}
	}
}

func writeLine(b *strings.Builder, words ...string) {
	b.WriteString(strings.Join(words, " ") + "\n")
}

func ruleText(r kernel.Rule) string {
	words := append([]string{"-m", "comment", "--comment", r.Comment()}, r.Args()...)
	for i, w := range words {
		words[i] = quote(w)
	}
	return strings.Join(words, " ")
}

func tablesOf(r kernel.Ruleset, stale []kernel.SavedRule) []string {
	var tables []string
	for _, c := range r.Chains {
		tables = append(tables, c.Table)
	}
	for _, j := range r.Jumps {
		tables = append(tables, j.Table)
	}
	for _, s := range stale {
		tables = append(tables, s.Table)
	}
	slices.SortFunc(tables, func(a, b string) int { return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a, b)) })
	return slices.Compact(tables)
}

func rank(table string) int {
	if table == "filter" {
		return 0
	}
	return 1
}
