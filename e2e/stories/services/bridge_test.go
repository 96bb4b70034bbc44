package services

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/manifest"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

// TestBridge runs two pods on the bridge of one node. IPVS can translate replies between them only if the
// br_netfilter module passes bridged packets to netfilter.
func TestBridge(t *testing.T) {
	labtest.Need(t)
	cluster.NeedIPVS(t, "only IPVS compares reassembled datagrams with the MTU")
	loadBridgeFilter(t)
	c := cluster.New(t, cluster.Config{Name: "bridge", Nodes: 1, Bridge: true})
	node := c.Nodes[0]
	client, web := node.Pod(t, "client"), node.Pod(t, "web")
	web.Serve(t, cluster.TCP, http.Target)
	web.Serve(t, cluster.UDP, dns.Target)
	services := manifest.Maker{Cluster: c, Ports: defaultPorts}
	svc := services.Service(`
metadata: {name: bridged}
---
endpoints: [{addresses: [web]}]`)
	dir, socket := t.TempDir(), filepath.Join(t.TempDir(), "run", "agent.sock")
	writeManifests(t, dir, nodeManifest(node)+svc.YAML())
	agent := node.MustStart(t, onManifests(t, node, "run", dir, append(agentFlags, "--status-socket", socket)...)...)
	agent.AwaitLog(t, patience, "initial sync complete")

	for _, f := range c.FamilyList() {
		at, sysctl := svc.At(f, http), kernel.BridgeFilter(map[cluster.Family]inet.Family{cluster.V4: inet.IPv4, cluster.V6: inet.IPv6}[f])
		says := func(want bool) {
			t.Helper()
			name := strings.ReplaceAll(sysctl, "/", ".") + "=1"
			preflight, _ := node.Run(cluster.AgentBinary(t), "preflight")
			explain, _ := node.Run(cluster.AgentBinary(t), "explain", at, "--from", client.Addr(f).String(), "--status-socket", socket)
			for command, out := range map[string]string{"preflight": preflight, "explain": explain} {
				if strings.Contains(out, name) != want {
					t.Errorf("%s: %s mentions %s: want %t\n%s", f, command, name, want, out)
				}
			}
		}
		wantReply(t, client.Get(t, cluster.TCP, at, slowly), "web", client.Addr(f))
		says(false)
		large(t, client.Host, svc.At(f, dns), f)
		node.MustRun(t, "sysctl", "-qw", sysctl+"=0")
		client.MustTimeout(t, cluster.TCP, at, cluster.Within(cluster.DefaultSilence))
		says(true)
		node.MustRun(t, "sysctl", "-qw", sysctl+"=1")
		wantReply(t, client.Get(t, cluster.TCP, at, slowly), "web", client.Addr(f))
	}
}

// loadBridgeFilter loads br_netfilter for the rest of the test. The module also affects the bridges of other tests.
func loadBridgeFilter(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("/proc/sys/" + kernel.BridgeFilter(inet.IPv4)); err == nil {
		return
	}
	if out, err := exec.Command("modprobe", "br_netfilter").CombinedOutput(); err != nil {
		t.Fatalf("modprobe br_netfilter: %v: %s", err, out)
	}
	t.Cleanup(func() {
		// modprobe -r would also unload the bridge module, and thereby remove the bridges of all other clusters.
		if out, err := exec.Command("rmmod", "br_netfilter").CombinedOutput(); err != nil {
			t.Errorf("rmmod br_netfilter: %v: %s", err, out)
		}
	})
}

// large sends a datagram in fragments. Over IPv6, the kernel rejects it: netfilter reassembles the fragments on the
// bridge, and IPVS compares the whole datagram with the MTU (see docs/known-limits.md).
func large(t *testing.T, from *cluster.Host, at string, f cluster.Family) {
	t.Helper()
	err := from.ProbeLarge(cluster.UDP, at, 4000, slowly)
	if refused := err != nil && strings.Contains(err.Error(), "message too long"); refused != (f == cluster.V6) || !refused && err != nil {
		t.Errorf("%s: a datagram of 4,000 bytes: %v", f, err)
	}
}
