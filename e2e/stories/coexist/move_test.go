package coexist

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// TestMoveRules moves an agent's rules to nftables and back. IPVS does not change, no request or open connection is
// lost, and nothing is left in the old rule layer.
func TestMoveRules(t *testing.T) {
	cluster.NeedIPTables(t, "the agent has no iptables to move from")
	cluster.NeedPauses(t)
	w := onWorld(t)
	node := w.node1
	w.restartAgent(t, node, "--rules=iptables")
	far := w.farService()
	paths := []path{
		{w.client.Host, cluster.TCP, far.at(cluster.V4, http), "web-2", w.client.V4},
		{w.client.Host, cluster.UDP, far.at(cluster.V6, dns), "web-2", w.client.V6},
		{w.outside, cluster.TCP, far.atNode(cluster.V6, http, node), "web-2", node.V6},
		{w.outside, cluster.UDP, far.atNode(cluster.V4, dns, node), "web-2", node.V4},
		{w.outside, cluster.TCP, w.localService().atBalancer(cluster.V4, http), "web-1", w.outside.V4},
		{node.Host, cluster.TCP, far.at(cluster.V4, http), "web-2", node.V4},
	}
	var flows []*cluster.Flows
	var watching []*watcher
	for _, p := range paths {
		p.from.Await(t, patience, p.proto, p.to)
		flows = append(flows, p.from.OpenFlows(t, 3, p.proto, p.to, cluster.FlowConfig{Within: patience, Max: time.Hour}))
		watching = append(watching, watch(t, p, slowly))
	}
	servers := sorted(node.MustRun(t, "ipvsadm", "-Sn"))
	for _, rules := range []string{"nftables", "iptables", "nftables"} {
		w.stopAgent(t, node)
		w.startAgent(t, node, "--rules="+rules)
		w.agents[node].AwaitLog(t, patience, "initial sync complete")
		w.onlyIn(t, node, rules)
		if now := sorted(node.MustRun(t, "ipvsadm", "-Sn")); now != servers {
			t.Errorf("after the move to %s, the virtual servers are\n%s\nwant\n%s", rules, now, servers)
		}
		w.mustPass(t, cluster.V4, cluster.V6)
		for _, f := range flows {
			f.AwaitRound(t, patience)
		}
	}
	for _, f := range flows {
		f.MustBeUnharmed(t)
	}
	reportProblems(t, watching)

	w.stopAgent(t, node)
	if out, err := cleanup(t, node, "--rules=iptables"); err != nil {
		t.Errorf("cleanup: %v\n%s", err, out)
	}
	for _, rules := range []string{"nftables", "iptables"} {
		if left := ruleTraces(t, node, rules); left != "" {
			t.Errorf("cleanup left:\n%s", left)
		}
	}
	if left := node.MustRun(t, "ipvsadm", "-Sn"); left != "" {
		t.Errorf("cleanup left:\n%s", left)
	}
	w.startAgent(t, node)
	w.agents[node].AwaitLog(t, patience, "initial sync complete")
}

func (w *world) onlyIn(t *testing.T, node *cluster.Node, rules string) {
	t.Helper()
	cluster.Eventually(t, patience, "all sets and rules are in "+rules, func() error {
		for _, place := range []string{"nftables", "iptables"} {
			if traces := ruleTraces(t, node, place); (traces != "") != (place == rules) {
				return fmt.Errorf("in %s: %q", place, traces[:min(len(traces), 200)])
			}
		}
		return nil
	})
}

func ruleTraces(t *testing.T, node *cluster.Node, place string) string {
	t.Helper()
	if place == "nftables" {
		out := node.MustRun(t, "nft", "list", "tables")
		if !strings.Contains(out, "inet kube-ipvs") {
			return ""
		}
		return out
	}
	var found []string
	for _, line := range lines(node.MustRun(t, "iptables-save") + node.MustRun(t, "ip6tables-save") + node.MustRun(t, "ipset", "list", "-name")) {
		if strings.Contains(line, "KUBE-") || strings.HasPrefix(line, "KIPVS-") {
			found = append(found, line)
		}
	}
	return strings.Join(found, "\n")
}

func sorted(saved string) string { return strings.Join(unordered(lines(saved)), "\n") }
