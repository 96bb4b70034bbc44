package services

import (
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/manifest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

func TestNodeAddressAsClusterIP(t *testing.T) {
	labtest.Need(t)
	c := cluster.New(t, cluster.Config{Name: "nodeip", Nodes: 1})
	node := c.Nodes[0]
	node.Serve(t, cluster.TCP, 2222)
	pod := node.Pod(t, "web")
	pod.Serve(t, cluster.TCP, 8080)
	services := manifest.Maker{Cluster: c, Ports: "ports: [{name: http, port: 80, targetPort: 8080}]"}
	bad := services.Service(`
metadata: {name: bad}
spec: {clusterIPs: [node-1]}
---
endpoints: [{addresses: [web]}]`)
	good := services.Service(`
metadata: {name: good}
---
endpoints: [{addresses: [web]}]`)
	dir := t.TempDir()
	writeManifests(t, dir, bad.YAML()+good.YAML())
	agent := node.MustStart(t, onManifests(t, node, "run", dir, agentFlags...)...)
	agent.AwaitLog(t, patience, "initial sync complete")
	agent.AwaitLog(t, patience, "belongs to this node")
	for _, f := range c.FamilyList() {
		c.Clients[0].Get(t, cluster.TCP, node.At(f, 2222), slowly)
		node.Get(t, cluster.TCP, good.At(f, http), slowly)
	}
}
