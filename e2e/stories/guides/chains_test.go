package guides

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft"
)

// theirs lists chains that kube-proxy also uses in ipvs mode.
var theirs = []string{"KUBE-SERVICES", "KUBE-POSTROUTING", "KUBE-MARK-MASQ", "KUBE-FORWARD", "KUBE-IPVS-FILTER",
	"KUBE-PROXY-FIREWALL", "KUBE-IPVS-OUT-FILTER"}

// A chain that the script forgets would keep its ipsets in use.
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

func TestPagesNameKernelObjects(t *testing.T) {
	var names []string
	for _, c := range compile.Chains {
		names = append(names, c.Chain)
	}
	for _, s := range compile.Base(compile.Config{Host: compile.Host{Families: inet.Families}}).Sets {
		names = append(names, s.Name)
	}
	names = append(names, "KUBE-LOAD-BALANCER", "KUBE-NODE-PORT", "KUBE-SOURCE-RANGES-FIREWALL") // kube-proxy's ipsets
	name, family := regexp.MustCompile(`\b(KUBE|KIPVS)-[A-Z0-9-]*[A-Z0-9]\b`), regexp.MustCompile(`-[46]$`)
	table := regexp.MustCompile(`\b(?:table|chain|map|of) inet ([a-z-]+)`)
	for _, page := range pages(t) {
		text := strings.Join(page.Lines, "\n")
		for _, n := range name.FindAllString(text, -1) {
			if chain := family.ReplaceAllString(n, ""); !slices.Contains(names, n) && !slices.Contains(names, chain) && !slices.Contains([]string{"KUBE-IPVS", "KIPVS"}, chain) {
				t.Errorf("%s: no chain or set %s exists", page.Name, n)
			}
		}
		for _, m := range table.FindAllStringSubmatch(text, -1) {
			if m[1] != nft.Table {
				t.Errorf("%s: table inet %s does not exist", page.Name, m[1])
			}
		}
	}
}
