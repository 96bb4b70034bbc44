package services

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/internal/labtest"
)

// TestNodeAddressAsClusterIP: a Service that claims the node's own address gets a Problem, and the node's ports stay open.
func TestNodeAddressAsClusterIP(t *testing.T) {
	labtest.Need(t)
	c := cluster.New(t, cluster.Config{Name: "nodeip", Nodes: 1})
	node := c.Nodes[0]
	node.Serve(t, cluster.TCP, 2222)
	pod := node.Pod(t, "web")
	pod.Serve(t, cluster.TCP, 8080)
	bad := service{name: "bad", ips: []string{node.V4.String(), node.V6.String()}, ports: []port{http}, endpoints: []endpoint{podEndpoint(pod)}}
	good := service{name: "good", ips: []string{"10.96.5.1", "fd00:10:96::501"}, ports: []port{http}, endpoints: []endpoint{podEndpoint(pod)}}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "all.yaml"), []byte(bad.manifest()+good.manifest()), 0o644); err != nil {
		t.Fatal(err)
	}
	agent := node.MustStart(t, onManifests(t, node, "run", dir, agentFlags...)...)
	agent.AwaitLog(t, patience, "initial sync complete")
	agent.AwaitLog(t, patience, "belongs to this node")
	for _, f := range c.FamilyList() {
		c.Clients[0].Get(t, cluster.TCP, node.At(f, 2222), slowly)
		node.Get(t, cluster.TCP, good.at(f, http), slowly)
	}
}
