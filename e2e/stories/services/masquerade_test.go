package services

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/internal/labtest"
)

// sources says whom the server sees when clients of each kind use the Service: the client itself, or its node.
type sources struct{ pod, outside, host seenAs }

type seenAs string

const (
	itself seenAs = "itself"
	asNode seenAs = "the node"
)

// TestMasqueradeModes runs the agent once with each way of telling pods from other clients.
func TestMasqueradeModes(t *testing.T) {
	labtest.Need(t)
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
		// Who is local is not known, so only the node's own processes are masqueraded: they alone have no other way back.
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
	svc := service{name: "svc", ips: []string{"10.96.4.1", "fd00:10:96::401"}, ports: []port{http}, endpoints: []endpoint{podEndpoint(server)}}
	hairpin := service{name: "hairpin", ips: []string{"10.96.4.2", "fd00:10:96::402"}, ports: []port{http}, endpoints: []endpoint{podEndpoint(self)}}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "all.yaml"), []byte(nodeManifest(node)+svc.manifest()+hairpin.manifest()), 0o644); err != nil {
		t.Fatal(err)
	}
	agent := node.MustStart(t, onManifests(t, node, "run", dir, append(flags, inNamespace...)...)...)
	agent.AwaitLog(t, patience, "initial sync complete")

	for _, f := range c.FamilyList() {
		for _, from := range []struct {
			host *cluster.Host
			want seenAs
		}{{pod.Host, want.pod}, {node.Host, want.host}, {outside, want.outside}} {
			wantSource := map[seenAs]netip.Addr{itself: from.host.Addr(f), asNode: node.Addr(f)}[from.want]
			if from.host == outside && from.want == itself {
				// The answer goes straight back to the client, past the node: no connection. The server still tells who came.
				outside.MustTimeout(t, cluster.TCP, svc.at(f, http), cluster.Within(4*time.Second))
				continue
			}
			wantReply(t, from.host.Get(t, cluster.TCP, svc.at(f, http), slowly), "server", wantSource)
		}
		if got := self.Get(t, cluster.TCP, hairpin.at(f, http), slowly); got.Source == self.Addr(f) {
			t.Errorf("%s: a pod that reached itself was not masqueraded", f)
		}
	}
}
