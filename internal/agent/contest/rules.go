package contest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

func findRules(wanted kernel.Ruleset, read kernel.RulesView) (found []Finding) {
	lacking := read.Lacks(wanted.View())
	byKubeProxy := slices.ContainsFunc(lacking, func(id kernel.ChainID) bool { return slices.ContainsFunc(read.Foreign[id], fromKubeProxy) })
	for _, id := range lacking {
		f := Finding{
			Object: fmt.Sprintf("%s chain %s of table %s", wanted.Family, id.Chain, id.Table), Part: Rules, Count: 1, KubeProxy: byKubeProxy,
		}
		where := fmt.Sprintf("%s table %s: ", wanted.Family, id.Table)
		var what string
		f.Kind, what = findChain(wanted, read, id)
		f.What = where + what
		found = append(found, f)
	}
	return found
}

func findChain(wanted kernel.Ruleset, read kernel.RulesView, id kernel.ChainID) (kind, what string) {
	if !slices.ContainsFunc(wanted.Chains, func(c kernel.Chain) bool { return c.ChainID == id }) {
		return findJumps(wanted, read, id)
	}
	rules, exists := read.Chains[id]
	switch {
	case !exists:
		return Missing, fmt.Sprintf("chain %s is missing", id.Chain)
	case len(rules) == 0:
		return Emptied, fmt.Sprintf("chain %s was emptied", id.Chain)
	}
	return Changed, fmt.Sprintf("chain %s was changed", id.Chain)
}

func findJumps(wanted kernel.Ruleset, read kernel.RulesView, id kernel.ChainID) (kind, what string) {
	var targets []string
	for _, jump := range wanted.Jumps {
		if jump.ChainID == id && !slices.Contains(read.Jumps[id], jump.Tag()) {
			targets = append(targets, fmt.Sprint(jump.Verdict))
		}
	}
	if ahead := read.Ahead[id]; len(targets) == 0 && len(ahead) > 0 {
		return Changed, fmt.Sprintf("%s accepts packets before the agent's jump: %s", id.Chain, strings.Join(ahead[:min(len(ahead), 3)], "; "))
	}
	return Missing, fmt.Sprintf("the jump from %s to %s is missing", id.Chain, strings.Join(targets, ", "))
}

// kubeProxyTexts are strings that occur only in kube-proxy's rules. They identify these rules in chains that the agent
// also uses.
var kubeProxyTexts = []string{
	"ubernetes service", "kubernetes postrouting", "kubernetes forwarding", "--match-set KUBE-", "KUBE-SVC-", "KUBE-SEP-",
	"KUBE-NODE-PORT", "KUBE-NODEPORTS", "KUBE-LOAD-BALANCER",
}

// ChainOfKubeProxy returns a chain that kube-proxy wrote in ipvs mode after the agent; empty if there is none. Only
// this mode uses sets.
func ChainOfKubeProxy(read kernel.RulesView) string {
	return chainWith(read, func(rule string) bool { return strings.Contains(rule, "--match-set "+kernel.ProxySets) })
}

// ChainOfAnyKubeProxy returns a chain that kube-proxy wrote in any mode after the agent; empty if there is none.
func ChainOfAnyKubeProxy(read kernel.RulesView) string { return chainWith(read, fromKubeProxy) }

func chainWith(read kernel.RulesView, match func(rule string) bool) string {
	for id, rules := range read.Foreign {
		if slices.ContainsFunc(rules, match) {
			return id.String()
		}
	}
	return ""
}

func fromKubeProxy(rule string) bool {
	return slices.ContainsFunc(kubeProxyTexts, func(text string) bool { return strings.Contains(rule, text) })
}
