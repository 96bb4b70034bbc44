package contest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Finding is what an audit found changed: one chain, set or sysctl, or all virtual servers or addresses together, so that the number
// of findings does not depend on the number of Services.
type Finding struct {
	Object string
	// Example is one of the changes, as the command that repairs it; empty for rules.
	Example string
	// KubeProxy is true for a chain if kube-proxy wrote into one of those that this audit found: it writes all of its chains together.
	KubeProxy bool
}

func (f Finding) String() string {
	text := f.Object
	if f.Example != "" {
		text += " (" + f.Example + ")"
	}
	if f.KubeProxy {
		text += " by kube-proxy"
	}
	return text
}

// Find names what an audit repairs, sorted, given the rules that it read.
func Find(repairs []kernel.Op, read map[inet.Family]kernel.RulesView) []Finding {
	byObject := map[string]Finding{}
	for _, op := range repairs {
		if rules, ok := op.Object.(kernel.Ruleset); ok {
			view := read[rules.Family]
			lacking := view.Lacks(rules.View())
			byKubeProxy := slices.ContainsFunc(lacking, func(id kernel.ChainID) bool { return slices.ContainsFunc(view.Foreign[id], fromKubeProxy) })
			for _, id := range lacking {
				name := fmt.Sprintf("%s chain %s of table %s", rules.Family, id.Chain, id.Table)
				byObject[name] = Finding{Object: name, KubeProxy: byKubeProxy}
			}
			continue
		}
		name := nameOf(op.Object)
		if _, known := byObject[name]; !known {
			byObject[name] = Finding{Object: name, Example: op.String()}
		}
	}
	var found []Finding
	for _, f := range byObject {
		found = append(found, f)
	}
	slices.SortFunc(found, func(a, b Finding) int { return cmp.Compare(a.Object, b.Object) })
	return found
}

// nameOf is what a finding calls an object.
func nameOf(object kernel.Object) string {
	switch o := object.(type) {
	case kernel.Server, kernel.ServerDestination:
		return "virtual servers"
	case kernel.BoundAddress:
		return "addresses of " + kernel.Device
	case kernel.DummyDevice:
		return "device " + kernel.Device
	case kernel.Set:
		return "ipset " + o.Name
	case kernel.Member:
		return "ipset " + o.Set
	case kernel.SysctlSetting:
		return "sysctl " + o.Name
	case kernel.Timeouts:
		return "IPVS timeouts"
	}
	return object.String()
}

// kubeProxyTexts are parts of rules that kube-proxy writes into chains that have the same names as the agent's: its comments, and
// its sets and chains.
var kubeProxyTexts = []string{
	"ubernetes service", "kubernetes postrouting", "kubernetes forwarding", "--match-set KUBE-", "KUBE-SVC-", "KUBE-SEP-",
	"KUBE-NODE-PORT", "KUBE-NODEPORTS", "KUBE-LOAD-BALANCER",
}

// fromKubeProxy is true for a rule of kube-proxy, in any of its modes.
func fromKubeProxy(rule string) bool {
	return slices.ContainsFunc(kubeProxyTexts, func(text string) bool { return strings.Contains(rule, text) })
}
