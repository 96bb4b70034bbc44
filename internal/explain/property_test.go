package explain_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
)

// modelRule is a rule of the model: its matches, their result for the packet, and its target.
type modelRule struct {
	text   string
	is     map[bool]bool // the result of the known matches for the first packet (false) and later ones (true)
	known  bool
	target string
}

// facts maps each match to its result in filter INPUT, for a packet from outside to the ClusterIP.
var facts = map[string]bool{
	"-s 198.51.100.0/24": true, "-s 10.244.0.0/16": false, "! -s 10.244.0.0/16": true, "-d 10.96.0.0/16": true, "-p tcp -m tcp --dport 80": true,
	"-p tcp -m multiport --dports 22,443": false, "-p udp": false, "-m conntrack --ctstate RELATED,ESTABLISHED": false, "-i eth0": true, "! -i eth+": false,
	"-m addrtype --dst-type LOCAL": true, "-m addrtype --src-type LOCAL": false, "-p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN": true, "": true,
	"-m owner --uid-owner 0": false, "-m pkttype --pkt-type broadcast": false,
}

// laterFacts are the results that differ for later packets of the connection.
var laterFacts = map[string]bool{
	"-m conntrack --ctstate RELATED,ESTABLISHED": true, "-p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN": false,
}

// drawRules draws the chains 0 to 2. A chain has jumps and gotos only to later chains.
func drawRules(t *rapid.T) [][]modelRule {
	all := make([][]modelRule, 3)
	texts := make([]string, 0, len(facts))
	for text := range facts {
		texts = append(texts, text)
	}
	slices.Sort(texts)
	for chain := range all {
		targets := []string{"-j ACCEPT", "-j DROP", "-j RETURN", "-j LOG"}
		for later := chain + 1; later < len(all); later++ {
			targets = append(targets, fmt.Sprintf("-j C%d", later), fmt.Sprintf("-g C%d", later))
		}
		for range rapid.IntRange(1, 6).Draw(t, "rules") {
			text := ""
			if rapid.Bool().Draw(t, "matches") {
				text = rapid.SampledFrom(texts).Draw(t, "match")
			}
			r := modelRule{text: text, is: map[bool]bool{false: facts[text], true: facts[text]}, known: true, target: rapid.SampledFrom(targets).Draw(t, "target")}
			if is, differs := laterFacts[text]; differs {
				r.is[true] = is
			}
			if rapid.IntRange(0, 5).Draw(t, "unknown") == 0 {
				r.text, r.known = strings.TrimSpace(text+" -m string --string x --algo bm"), false
			}
			all[chain] = append(all[chain], r)
		}
	}
	return all
}

// outcomes returns the possible outcomes of a chain from the given rule on. It tries both results of each unknown
// match.
func outcomes(all [][]modelRule, chain, from int, later bool) map[string]bool {
	out := map[string]bool{}
	if from == len(all[chain]) {
		return map[string]bool{"RETURN": true}
	}
	r := all[chain][from]
	rest := func() {
		for o := range outcomes(all, chain, from+1, later) {
			out[o] = true
		}
	}
	if !r.is[later] || !r.known {
		rest()
	}
	if !r.is[later] {
		return out
	}
	switch kind, target, _ := strings.Cut(r.target, " "); {
	case target == "LOG":
		rest()
	case !strings.HasPrefix(target, "C"):
		out[target] = true
	default:
		for o := range outcomes(all, int(target[1]-'0'), 0, later) {
			if o == "RETURN" && kind == "-j" {
				rest()
				continue
			}
			out[o] = true
		}
	}
	return out
}

// verdicts returns the possible verdicts about a connection, which works if its first packet and the later ones pass.
func verdicts(all [][]modelRule, drops bool) map[explain.Verdict]bool {
	may := map[explain.Verdict]bool{explain.Passes: true}
	for _, later := range []bool{false, true} {
		passes := false
		for o := range outcomes(all, 0, 0, later) {
			stops := o == "DROP" || o == "RETURN" && drops
			passes, may[explain.Stops] = passes || !stops, may[explain.Stops] || stops
		}
		may[explain.Passes] = may[explain.Passes] && passes
	}
	maps.DeleteFunc(may, func(_ explain.Verdict, is bool) bool { return !is })
	return may
}

// TestRulesHaveTheOutcomesOfAModel compares random chains with a model that tries every result of the matches that
// explain cannot evaluate. The verdict must be the model's outcome or unclear. If explain can evaluate all matches, the
// verdict must be certain.
func TestRulesHaveTheOutcomesOfAModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		all := drawRules(rt)
		drops := rapid.Bool().Draw(rt, "policy DROP")
		w := newWorld(t, web())
		w.kernel.Routes = map[netip.Addr]kernel.Route{netip.MustParseAddr(outside): {Interface: "eth0"}}
		for _, end := range []string{pod, otherPod} {
			w.kernel.Routes[netip.MustParseAddr(end)] = kernel.Route{Interface: "cni0"}
		}
		input := kernel.ChainID{Table: "filter", Chain: "INPUT"}
		rules, opaque := w.kernel.Rules[inet.IPv4], false
		rules.Rules[input] = nil
		for n, chain := range all {
			id := input
			if n > 0 {
				id.Chain = fmt.Sprintf("C%d", n)
			}
			for _, r := range chain {
				opaque = opaque || !r.known
				rules.Rules[id] = append(rules.Rules[id], iptables.ParseRule(id, strings.TrimSpace(r.text+" "+r.target)))
			}
		}
		if drops {
			rules.Policies[input] = "DROP"
		}
		may := verdicts(all, drops)
		e := w.ask(clusterIPHTTP, outside)
		switch {
		case e.Verdict == explain.Unclear && opaque:
		case len(may) == 1 && may[e.Verdict]:
		default:
			rt.Fatalf("want one of the model's outcomes %v, policy DROP %t:\n%v\n%s", may, drops, all, steps(e))
		}
	})
}
