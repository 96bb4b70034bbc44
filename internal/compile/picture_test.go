package compile_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// A box in the picture shows a built-in chain ("nat PREROUTING"), our chain, and the sets that our chain matches.
var (
	boxName  = regexp.MustCompile(`<text class="name"[^>]*>([^<]*)</text>`)
	boxChain = regexp.MustCompile(`<text class="chain"[^>]*>([^<]*)</text>`)
	boxSets  = regexp.MustCompile(`<text class="set"[^>]*>([^<]*)</text>`)
	chainRef = regexp.MustCompile(`KUBE-[A-Z-]+`)
)

// TestPictureOfAPacket compares docs/images/packet.svg with the rules: each box corresponds to a jump, and names the
// sets of its chain.
func TestPictureOfAPacket(t *testing.T) {
	svg, err := os.ReadFile("../../docs/images/packet.svg")
	if err != nil {
		t.Fatal(err)
	}
	rules := compile.Base(compiletest.Config()).Rulesets[0]
	for _, name := range chainRef.FindAllString(string(svg), -1) {
		if !slices.ContainsFunc(rules.Chains, func(c kernel.Chain) bool { return c.ChainID.Chain == name }) {
			t.Errorf("the picture has chain %s, which does not exist", name)
		}
	}
	boxes := strings.Split(string(svg), `<rect class=`)
	drawn := map[kernel.ChainID][]string{}
	for _, box := range boxes {
		if !strings.HasPrefix(box, `"rules"`) || !boxName.MatchString(box) {
			continue
		}
		table, builtin, _ := strings.Cut(boxName.FindStringSubmatch(box)[1], " ")
		chain := boxChain.FindStringSubmatch(box)[1]
		from := kernel.ChainID{Table: table, Chain: builtin}
		drawn[from] = append(drawn[from], chain)
		checkSets(t, box, setsOf(rules, kernel.ChainID{Table: table, Chain: chain}))
	}
	jumps := map[kernel.ChainID][]string{}
	for _, j := range rules.Jumps {
		if j.ChainID.Chain != "FORWARD" { // the picture shows replies only as text
			jumps[j.ChainID] = append(jumps[j.ChainID], string(j.Verdict.(kernel.JumpTo)))
		}
	}
	if len(drawn) == 0 {
		t.Fatal("found no rules in the picture")
	}
	for from, chains := range jumps {
		if !slices.Equal(drawn[from], chains) {
			t.Errorf("%s: the picture has %v, but the rules jump to %v", from, drawn[from], chains)
		}
	}
}

// checkSets compares the sets in a box with the sets of its chain. A box that ends with an ellipsis names only some of them.
func checkSets(t *testing.T, box string, sets []string) {
	t.Helper()
	var named []string
	for _, line := range boxSets.FindAllStringSubmatch(box, -1) {
		if !strings.HasPrefix(line[1], "hook ") {
			named = append(named, strings.Fields(line[1])...)
		}
	}
	some := slices.Contains(named, "…")
	named = slices.DeleteFunc(named, func(s string) bool { return s == "…" })
	for _, name := range named {
		if !slices.Contains(sets, name) {
			t.Errorf("%s: the picture has set %s, but the rules match %v", boxChain.FindStringSubmatch(box)[1], name, sets)
		}
	}
	for _, name := range sets {
		if !some && !slices.Contains(named, name) {
			t.Errorf("%s: the picture lacks set %s", boxChain.FindStringSubmatch(box)[1], name)
		}
	}
}

func setsOf(rules kernel.Ruleset, id kernel.ChainID) []string {
	var sets []string
	for _, c := range rules.Chains {
		if c.ChainID != id {
			continue
		}
		for _, r := range c.Rules {
			for _, m := range r.Conditions {
				if m, ok := m.(kernel.InSet); ok {
					sets = append(sets, strings.TrimPrefix(m.Set, compile.SetPrefix+map[inet.Family]string{inet.IPv4: "4-", inet.IPv6: "6-"}[rules.Family]))
				}
			}
		}
	}
	slices.Sort(sets)
	return slices.Compact(sets)
}
