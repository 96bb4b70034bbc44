package guides

import (
	"slices"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
)

// theirs lists chains that kube-proxy also has in ipvs mode. It takes them over when it restarts.
var theirs = []string{"KUBE-SERVICES", "KUBE-POSTROUTING", "KUBE-MARK-MASQ", "KUBE-FORWARD", "KUBE-IPVS-FILTER",
	"KUBE-PROXY-FIREWALL", "KUBE-IPVS-OUT-FILTER"}

// TestWayBackRemovesOurChains checks that the page names every chain. A forgotten chain keeps ipsets in use.
func TestWayBackRemovesOurChains(t *testing.T) {
	var script string
	for _, page := range pages(t) {
		for _, b := range page.Blocks {
			if b.NotRun == "e2e/stories/coexist runs this script between the agent and the real kube-proxy" {
				script = strings.Join(b.Text, "\n")
			}
		}
	}
	for _, chain := range compile.Base(compile.Config{Host: compile.Host{Families: inet.Families}}).Rulesets[0].Chains {
		if !slices.Contains(theirs, chain.Chain) && !strings.Contains(script, chain.Chain) {
			t.Errorf("docs/replace-kube-proxy.md does not remove the chain %s on the way back", chain.Chain)
		}
	}
}
