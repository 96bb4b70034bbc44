package coexist

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// neighbors creates objects that belong to the kubelet, a CNI plugin and an administrator.
const neighbors = `
family=inet; server=10.50.0.1:80; address=10.50.0.9/32
test $V = 4 || { family=inet6; server=[fd00:50:1::1]:80; address=fd00:50:1::9/128; }
ipset create KUBE-$V-THEIRS hash:ip,port family $family
ipt -N KUBE-FIREWALL
ipt -A INPUT -j KUBE-FIREWALL
ipt -A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP
ipt -t mangle -N KUBE-KUBELET-CANARY
ipt -t mangle -N KUBE-IPTABLES-HINT
ipt -t nat -N CNI-HOSTPORT-DNAT
ipt -t nat -A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
ipvsadm -A -t $server -s wrr
ipvsadm -a -t $server -r $(test $V = 4 && echo 10.51.0.1:80 || echo [fd00:51::1]:80) -m -w 7
ip link show kube-ipvs0 >/dev/null 2>&1 || ip link add kube-ipvs0 type dummy
ip addr add $address dev kube-ipvs0 nodad
`

// TestLeftovers runs the real kube-proxy in each of its modes before the agent. `cleanup --kube-proxy-leftovers`,
// which doctor recommends, must remove only kube-proxy's objects.
func TestLeftovers(t *testing.T) {
	cluster.NeedIPTables(t, "kube-proxy's rules cannot be removed without its programs")
	w := onWorld(t)
	node := w.node3
	proxy := kubeProxy(t)
	_, config := w.controlPlane(t)
	for _, c := range []struct{ mode, program, rules string }{
		{"ipvs", proxy, "iptables"}, {"iptables", proxy, "iptables"}, {"nftables", proxy, "iptables"},
		{"ipvs", proxy, "nftables"}, {"iptables", proxy, "nftables"}, {"iptables", onLegacy(t, proxy), "iptables"},
	} {
		t.Run(fmt.Sprintf("%s in mode %s, the agent's rules in %s", filepath.Base(c.program), c.mode, c.rules), func(t *testing.T) {
			defer w.wipe(t, node)
			l := &leftovers{w, node, filepath.Join(t.TempDir(), "agent.sock")}
			theirs := w.startKubeProxy(t, c.program, config, c.mode)
			w.awaitMode(t, node, c.program, c.mode)
			if out, err := l.remove(t); err == nil || !strings.Contains(err.Error(), "no agent serves this node") {
				t.Errorf("cleanup without an agent: want an error, got %v\n%s", err, out)
			}
			end(t, theirs)
			its := dump(t, node, showAll)
			for _, f := range both { // after kube-proxy has stopped, because kube-proxy would remove some of these objects
				w.shell(t, node, f, neighbors)
			}
			others := dump(t, node, showAll)
			for command, had := range its {
				others[command] = slices.DeleteFunc(others[command], func(line string) bool { return slices.Contains(had, line) })
			}

			w.agents[node] = node.MustStart(t, cluster.AgentBinary(t), "run", "--kubeconfig", config, "--hostname-override", node.Name,
				"--cluster-cidr", podCIDRs, "--conntrack-max-per-core", "0", "--rules="+c.rules, "--status-socket", l.socket)
			w.agents[node].AwaitLog(t, patience, "initial sync complete")
			l.remedy(t, others)

			theirs = w.startKubeProxy(t, c.program, config, c.mode)
			defer end(t, theirs)
			w.awaitMode(t, node, c.program, c.mode)
			if out, err := l.remove(t); err == nil || !strings.Contains(err.Error(), "kube-proxy might be running on this node") {
				t.Errorf("cleanup while kube-proxy is running: want an error, got %v\n%s", err, out)
			}
			w.stopAgent(t, node)
		})
	}
}

func onLegacy(t *testing.T, proxy string) string {
	t.Helper()
	dir := t.TempDir()
	for _, program := range []string{"iptables", "ip6tables"} {
		for _, suffix := range []string{"", "-save", "-restore"} {
			script := fmt.Sprintf("#!/bin/sh\nexec %s-legacy%s \"$@\"\n", program, suffix)
			if err := os.WriteFile(filepath.Join(dir, program+suffix), []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	program := filepath.Join(dir, "kube-proxy-legacy")
	if err := os.WriteFile(program, []byte("#!/bin/sh\nPATH="+dir+":$PATH exec "+proxy+" \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return program
}

type leftovers struct {
	*world
	node   *cluster.Node
	socket string // the agent's status socket
}

func (l *leftovers) remedy(t *testing.T, others map[string][]string) {
	t.Helper()
	w, node, everything := l.world, l.node, append([]string{"nft -s list ruleset"}, showAll...)
	const command = "kube-ipvs cleanup --kube-proxy-leftovers"
	if found := l.diagnose(t); !strings.Contains(found, "kube-proxy's rules: ") || !strings.Contains(found, command) {
		t.Errorf("doctor does not report kube-proxy's rules:\n%s", found)
	}
	before := dump(t, node, everything)
	planned, err := l.remove(t, "--dry-run")
	if err != nil {
		t.Fatal(err)
	}
	compareDumps(t, "--dry-run", before, dump(t, node, everything))

	servers, ours := before["ipvsadm -Sn"], agentsRules(t, node)
	out, err := l.remove(t)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("removed:\n%s", out)
	for _, line := range lines(out) {
		if !strings.Contains(planned, line) {
			t.Errorf("--dry-run does not name %q", line)
		}
	}
	now := dump(t, node, showAll)
	mustHave(t, "others", others, now)
	compareDumps(t, "virtual servers", map[string][]string{"ipvsadm -Sn": servers}, map[string][]string{"ipvsadm -Sn": now["ipvsadm -Sn"]})
	compareDumps(t, "addresses", map[string][]string{"ip -o addr": before["ip -o addr"]}, map[string][]string{"ip -o addr": now["ip -o addr"]})
	if left := agentsRules(t, node); left != ours {
		t.Errorf("the agent's rules changed from\n%s\nto\n%s", ours, left)
	}
	l.mustBeGone(t, now)
	if out, err := l.remove(t); err != nil || !strings.Contains(out, "no rules, sets or tables of kube-proxy") {
		t.Errorf("the second cleanup: %v\n%s", err, out)
	}
	w.repaired(t, node, w.farService())
	if found := l.diagnose(t); strings.Contains(found, "kube-proxy's rules: ") || strings.Contains(found, "| rules: ") || strings.Contains(found, "| sets: ") {
		t.Errorf("doctor still reports kube-proxy's objects after cleanup:\n%s", found)
	}
	l.mustServe(t)
}

func (l *leftovers) mustBeGone(t *testing.T, now map[string][]string) {
	t.Helper()
	for _, text := range []string{"kubernetes ", "KUBE-SVC-", "KUBE-SEP-", "KUBE-NODE", "KUBE-PROXY-CANARY", "create KUBE-CLUSTER-IP", "create KUBE-6-"} {
		for command, all := range now {
			for _, line := range all {
				if strings.Contains(line, text) && !strings.Contains(line, "-THEIRS ") {
					t.Errorf("%s still shows an object of kube-proxy: %s", command, line)
				}
			}
		}
	}
	if tables := l.node.MustRun(t, "nft", "list", "tables"); strings.Contains(tables, "kube-proxy") {
		t.Errorf("cleanup left tables:\n%s", tables)
	}
}

func (l *leftovers) mustServe(t *testing.T) {
	t.Helper()
	for _, f := range both {
		far := path{l.spareClient.Host, cluster.TCP, l.farService().at(f, http), "web-2", l.spareClient.Addr(f)}
		if err := far.walk(); err != nil {
			t.Error(err)
		}
	}
}

func (l *leftovers) remove(t *testing.T, flags ...string) (string, error) {
	t.Helper()
	return cleanup(t, l.node, append([]string{"--kube-proxy-leftovers", "--status-socket", l.socket}, flags...)...)
}

func (l *leftovers) diagnose(t *testing.T) string {
	t.Helper()
	return l.node.MustRun(t, "sh", "-c", cluster.AgentBinary(t)+" doctor --status-socket "+l.socket+"; true")
}

func agentsRules(t *testing.T, node *cluster.Node) string {
	t.Helper()
	return node.MustRun(t, "sh", "-c", "{ iptables-save; ip6tables-save; } | grep kube-ipvs:; nft list table inet kube-ipvs 2>/dev/null | sed '/elements/,/}/d'; true")
}

func (w *world) awaitMode(t *testing.T, node *cluster.Node, program, mode string) {
	t.Helper()
	if mode == "ipvs" {
		w.awaitTheirs(t, node)
		return
	}
	cluster.Eventually(t, proxyPatience, "kube-proxy has written its rules", func() error {
		for _, f := range both {
			show := []string{saveProgram(f), "-t", "nat"}
			switch {
			case strings.HasSuffix(program, "legacy"):
				show[0] = strings.Replace(show[0], "-", "-legacy-", 1)
			case mode == "nftables":
				show = []string{"nft", "list", "table", map[cluster.Family]string{cluster.V4: "ip", cluster.V6: "ip6"}[f], "kube-proxy"}
			}
			if rules, err := node.Run(show...); err != nil || !strings.Contains(rules, w.farService().ip(f).String()) {
				return errors.Join(err, fmt.Errorf("the Service is not in %s", strings.Join(show, " ")))
			}
		}
		return nil
	})
}
