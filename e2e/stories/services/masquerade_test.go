package services

import (
	"net/netip"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/manifest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

// sources lists the source address that the server sees for each kind of client.
type sources struct{ pod, outside, host seenAs }

type seenAs string

const (
	itself seenAs = "itself"
	asNode seenAs = "the node"
)

func TestMasqueradeModes(t *testing.T) {
	labtest.Need(t)
	cluster.NeedKernel(t, "the agent's process has no rules that masquerade")
	for _, mode := range []struct {
		name   string
		bridge bool
		flags  []string
		want   sources
	}{
		{"cluster CIDR", false, []string{"--cluster-cidr", podCIDRs}, sources{itself, asNode, asNode}},
		{"masquerade all", false, []string{"--masquerade-all", "--cluster-cidr", podCIDRs}, sources{asNode, asNode, asNode}},
		{"node CIDR", false, []string{"--detect-local-mode", "NodeCIDR"}, sources{itself, asNode, asNode}},
		{"interface prefix", false, []string{"--detect-local-mode", "InterfaceNamePrefix", "--pod-interface-name-prefix", "pod-"},
			sources{itself, asNode, asNode}},
		{"bridge", true, []string{"--detect-local-mode", "BridgeInterface", "--pod-bridge-interface", "cni0"}, sources{itself, asNode, asNode}},
		// If the agent cannot detect local clients, it masquerades only processes on the node, because replies could
		// not reach them otherwise.
		{"none", false, nil, sources{itself, itself, asNode}},
	} {
		t.Run(mode.name, func(t *testing.T) { testSources(t, mode.bridge, mode.flags, mode.want) })
	}
}

func testSources(t *testing.T, bridge bool, flags []string, want sources) {
	c := cluster.New(t, cluster.Config{Name: "masq", Nodes: 2, Bridge: bridge})
	node, other, outside := c.Nodes[0], c.Nodes[1], c.Clients[0]
	pod, self, server := node.Pod(t, "client"), node.Pod(t, "self"), other.Pod(t, "server")
	server.Serve(t, cluster.TCP, 8080)
	self.Serve(t, cluster.TCP, 8080)
	c.RouteServiceCIDRVia(t, node)
	services := manifest.Maker{Cluster: c, Ports: "ports: [{name: http, port: 80, targetPort: 8080}]"}
	svc := services.Service(`
metadata: {name: svc}
---
endpoints: [{addresses: [server]}]`)
	hairpin := services.Service(`
metadata: {name: hairpin}
---
endpoints: [{addresses: [self]}]`)
	dir := t.TempDir()
	writeManifests(t, dir, nodeManifest(node)+svc.YAML()+hairpin.YAML())
	agent := node.MustStart(t, onManifests(t, node, "run", dir, append(flags, inNamespace...)...)...)
	agent.AwaitLog(t, patience, "initial sync complete")

	for _, f := range c.FamilyList() {
		for _, from := range []struct {
			host *cluster.Host
			want seenAs
		}{{pod.Host, want.pod}, {node.Host, want.host}, {outside, want.outside}} {
			wantSource := map[seenAs]netip.Addr{itself: from.host.Addr(f), asNode: node.Addr(f)}[from.want]
			if from.host == outside && from.want == itself {
				// The reply bypasses the node on its way to the client, so the connection fails.
				outside.MustTimeout(t, cluster.TCP, svc.At(f, http), cluster.Within(4*time.Second))
				continue
			}
			wantReply(t, from.host.Get(t, cluster.TCP, svc.At(f, http), slowly), "server", wantSource)
		}
		if got := self.Get(t, cluster.TCP, hairpin.At(f, http), slowly); got.Source == self.Addr(f) {
			t.Errorf("%s: a pod's connection to itself was not masqueraded", f)
		}
	}
}
