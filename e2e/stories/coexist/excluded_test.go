package coexist

import (
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// TestExcludedRanges excludes a Service address that a DNS cache on the node (nodelocaldns) also uses, and the address
// of another program's virtual server.
func TestExcludedRanges(t *testing.T) {
	w := onWorld(t)
	node, svc := w.node3, w.farService()
	t.Cleanup(func() { w.wipe(t, node) })
	excluded := []string{svc.ip(cluster.V4).String() + "/32", svc.ip(cluster.V6).String() + "/128", "10.50.0.0/24"}
	node.MustRun(t, "ipvsadm", "-A", "-u", "10.50.0.1:53", "-s", "rr")
	w.startAgent(t, node, "--ipvs-exclude-cidrs", strings.Join(excluded, ","), "--ipvs-sync-period", "2s")
	w.agents[node].AwaitLog(t, patience, "initial sync complete")

	node.MustRun(t, "ip", "link", "add", "nodelocaldns", "type", "dummy")
	t.Cleanup(func() { node.MustRun(t, "ip", "link", "del", "nodelocaldns") })
	for _, f := range both {
		node.AddAddr(t, "nodelocaldns", svc.ip(f).String())
		node.Serve(t, cluster.UDP, dns.port, cluster.On(svc.ip(f).String()), cluster.As("cache"))
		// The DNS cache exempts its packets from connection tracking.
		w.othersRules(t, node, `
ipt -t raw -A PREROUTING -p udp --dport 53 -d `+svc.ip(f).String()+` -j NOTRACK
ipt -t raw -A OUTPUT -p udp --sport 53 -s `+svc.ip(f).String()+` -j NOTRACK
ipt -A INPUT -p udp --dport 53 -d `+svc.ip(f).String()+` -j ACCEPT
`, f)
	}
	w.repaired(t, node, w.nearService())
	table := node.MustRun(t, "ipvsadm", "-Sn") + node.MustRun(t, "ipset", "save") +
		node.MustRun(t, "ip", "-o", "addr", "show", "dev", "kube-ipvs0")
	for _, f := range both {
		if at := svc.ip(f).String(); strings.Contains(table, at+":") || strings.Contains(table, at+",") ||
			strings.Contains(table, at+"/") || strings.Contains(table, at+"]") || strings.Contains(table, at+"\n") {
			t.Errorf("%s is excluded, but the agent serves it:\n%s", at, table)
		}
		if err := (path{w.spareClient.Host, cluster.UDP, svc.at(f, dns), "cache", w.spareClient.Addr(f)}).walk(); err != nil {
			t.Error(err)
		}
		if err := (path{w.spareClient.Host, cluster.UDP, svc.atBalancer(f, dns), "web-2", node.Addr(f)}).walk(); err != nil {
			t.Error(err)
		}
	}
	if !strings.Contains(table, "-A -u 10.50.0.1:53 -s rr") {
		t.Errorf("the foreign virtual server in an excluded range was removed:\n%s", table)
	}
}
