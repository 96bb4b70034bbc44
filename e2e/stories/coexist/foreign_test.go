package coexist

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// others creates kernel state that belongs to other programs and administrators. Some names resemble the agent's.
const others = `
family=inet; server=10.50.0.1:80; address=10.50.0.9/32
test $V = 4 || { family=inet6; server=[fd00:50:1::1]:80; address=fd00:50:1::9/128; }
ipset create KIPVS$V hash:ip family $family
ipset create KUBE-$V-THEIRS hash:ip,port family $family
ipset add KUBE-$V-THEIRS ${address%/*},tcp:80
ipt -N KUBE-FIREWALL
ipt -A INPUT -j KUBE-FIREWALL
ipt -A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP
ipt -A INPUT -m set --match-set KUBE-$V-THEIRS dst,dst -m comment --comment '"says kube-ipvs: but is not"' -j ACCEPT
for table in mangle nat raw; do
	ipt -t $table -N KUBE-KUBELET-CANARY
	ipt -t $table -A PREROUTING -s ${address%/*} -j ACCEPT
done
ipvsadm -A -t $server -s wrr
ipvsadm -a -t $server -r $(test $V = 4 && echo 10.51.0.1:80 || echo [fd00:51::1]:80) -m -w 7
ipvsadm -A -f 7$V $(test $V = 4 || echo -6) -s rr
ip addr add $address dev kube-ipvs0 nodad
`

const taken = `
at=%s
ipvsadm -A -t $at -s lc
ipvsadm -a -t $at -r $(test $V = 4 && echo 10.51.0.2:80 || echo [fd00:51::2]:80) -m -w 3
`

var showAll = []string{
	"ipvsadm -Sn", "ipset save", "ip -o addr", "iptables-save", "ip6tables-save", "iptables-legacy-save", "ip6tables-legacy-save",
	"ip -o link", "ip rule", "ip -4 route show table all", "ip -6 route show table all",
}

// dump omits counters, and the alias by which the agent recognizes kube-ipvs0.
func dump(t *testing.T, node *cluster.Node, commands []string) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for _, command := range commands {
		var kept []string
		for _, line := range lines(node.MustRun(t, strings.Fields(command)...)) {
			if strings.HasPrefix(line, "#") {
				continue
			}
			if strings.HasPrefix(line, ":") {
				line, _, _ = strings.Cut(line, " [")
			}
			line, _, _ = strings.Cut(line, `\    alias kube-ipvs`)
			kept = append(kept, strings.TrimSpace(line))
		}
		all[command] = kept
	}
	return all
}

func compareDumps(t *testing.T, what string, before, after map[string][]string) {
	t.Helper()
	for command, had := range before {
		for _, line := range had {
			if !slices.Contains(after[command], line) {
				t.Errorf("%s: %s: missing: %s", what, command, line)
			}
		}
		for _, line := range after[command] {
			if !slices.Contains(had, line) {
				t.Errorf("%s: %s: unexpected: %s", what, command, line)
			}
		}
	}
}

func mustHave(t *testing.T, what string, before, now map[string][]string) {
	t.Helper()
	for command, had := range before {
		for _, line := range had {
			if !slices.Contains(now[command], line) && !strings.Contains(line, "kube-ipvs0: <") {
				t.Errorf("%s: %s: missing: %s", what, command, line)
			}
		}
	}
}

func TestForeign(t *testing.T) {
	// proves: 147, 148
	w := onWorld(t)
	node := w.node3
	t.Cleanup(func() { w.wipe(t, node) })
	node.MustRun(t, "sh", "-ec", "ip link add kube-ipvs0 type dummy && ip link set kube-ipvs0 up")
	at := map[cluster.Family]string{}
	for _, f := range both {
		at[f] = w.emptyService().at(f, http)
		w.othersRules(t, node, others+fmt.Sprintf(taken, at[f]), f)
		legacy := map[cluster.Family]string{cluster.V4: "iptables-legacy", cluster.V6: "ip6tables-legacy"}[f]
		for _, table := range []string{"filter", "nat", "mangle"} {
			node.MustRun(t, legacy, "-w", "-t", table, "-A", "OUTPUT", "-p", "icmp", "-j", "ACCEPT")
		}
	}
	before := dump(t, node, showAll)

	w.startAgent(t, node, "--ipvs-sync-period", "2s")
	w.agents[node].AwaitLog(t, patience, "initial sync complete")
	running := dump(t, node, showAll)
	mustHave(t, "after the start", before, running)
	w.agents[node].AwaitLog(t, patience, "default/empty") // another program uses the Service's address
	w.repaired(t, node, w.nearService())
	mustHave(t, "after several syncs", before, dump(t, node, showAll))
	if out, err := cleanup(t, node); err == nil || !strings.Contains(err.Error(), "another kube-ipvs is running on this node") {
		t.Errorf("cleanup while an agent is running: want an error, got %v\n%s", err, out)
	}
	w.agents[node].Kill()
	w.startAgent(t, node)
	w.agents[node].AwaitLog(t, patience, "initial sync complete")
	mustHave(t, "after a kill and a restart", before, dump(t, node, showAll))
	for _, f := range both {
		far := path{w.spareClient.Host, cluster.TCP, w.farService().at(f, http), "web-2", w.spareClient.Addr(f)}
		if err := far.walk(); err != nil {
			t.Error(err)
		}
	}
	w.stopAgent(t, node)

	stopped := dump(t, node, showAll)
	planned, err := cleanup(t, node, "--dry-run")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(planned, "KIPVS-4-LEDGER") {
		t.Errorf("--dry-run does not list kube-ipvs's sets:\n%s", planned)
	}
	compareDumps(t, "cleanup --dry-run", stopped, dump(t, node, showAll))
	if out, err := cleanup(t, node); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	compareDumps(t, "cleanup", before, dump(t, node, showAll))
	if out, err := cleanup(t, node); err != nil || !strings.Contains(out, "no objects of kube-ipvs") {
		t.Errorf("second cleanup: %v\n%s", err, out)
	}
}

// TestCleanupOfAnEmptyNode requires that cleanup also removes kube-ipvs0.
func TestCleanupOfAnEmptyNode(t *testing.T) {
	// proves: 148
	w := onWorld(t)
	node := w.node3
	t.Cleanup(func() { w.wipe(t, node) })
	for _, f := range both { // so that new tables do not appear as differences
		w.shell(t, node, f, "for table in filter nat mangle; do ipt -t $table -P OUTPUT ACCEPT; done")
	}
	before := dump(t, node, showAll)
	w.startAgent(t, node)
	w.agents[node].AwaitLog(t, patience, "initial sync complete")
	w.stopAgent(t, node)
	if out, err := cleanup(t, node); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	compareDumps(t, "cleanup", before, dump(t, node, showAll))
}

// repaired waits for a full sync that starts after this call.
func (w *world) repaired(t *testing.T, node *cluster.Node, of service) {
	t.Helper()
	at := of.at(cluster.V4, http)
	node.MustRun(t, "ipvsadm", "-D", "-t", at)
	cluster.Eventually(t, patience, node.Name+" has "+at+" again", func() error {
		servers, err := node.VirtualServers()
		if _, there := servers[cluster.VirtualKey(cluster.TCP, at)]; err == nil && !there {
			err = fmt.Errorf("only %d virtual servers", len(servers))
		}
		return err
	})
}

func (w *world) wipe(t *testing.T, node *cluster.Node) {
	t.Helper()
	if agent := w.agents[node]; agent != nil && agent.Running() {
		agent.Kill()
	}
	_, err := node.Run("sh", "-ec", `
ipvsadm -C
nft flush ruleset
for f in filter nat mangle; do for ipt in iptables-legacy ip6tables-legacy; do $ipt -t $f -F; $ipt -t $f -X; done; done
ipset destroy
! ip link show kube-ipvs0 >/dev/null 2>&1 || ip link del kube-ipvs0
`)
	if err != nil {
		t.Errorf("empty %s: %v", node.Name, err)
	}
}
