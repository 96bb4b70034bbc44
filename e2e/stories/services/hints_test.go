package services

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// TestHints writes the hints that the slice controller would derive. node-1 is in zone-a, node-2 and node-3 are in
// zone-b.
func TestHints(t *testing.T) {
	s := onStage(t)

	t.Run("requests stay in their zone", func(t *testing.T) {
		// proves: 105, 106, 107, 108, 109
		svc := s.service(t, `
metadata: {name: zones}
---
endpoints:
- {addresses: [web-1], hints: {forZones: [{name: zone-a}]}}
- {addresses: [web-2], hints: {forZones: [{name: zone-b}]}}`)
		s.awaitPod(t, s.node1, svc, s.sameNode)
		s.awaitPod(t, s.node3, svc, s.otherNode)
		s.onlyFrom(t, s.client.Host, svc, "web-1")
		s.onlyFrom(t, s.node1.Host, svc, "web-1")
		s.onlyFrom(t, s.farClient.Host, svc, "web-2")
	})

	t.Run("one endpoint without hints, or none for the zone: all of them", func(t *testing.T) {
		svc := s.service(t, `
metadata: {name: half-hinted}
---
endpoints: [{addresses: [web-1], hints: {forZones: [{name: zone-a}]}}, {addresses: [web-2]}]`)
		s.fromBoth(t, s.client.Host, svc)
		s.change(t, svc.With(`
endpoints:
- {addresses: [web-1], hints: {forZones: [{name: zone-a}]}}
- {addresses: [web-2], hints: {forZones: [{name: zone-a}]}}`))
		s.fromBoth(t, s.farClient.Host, svc)
	})

	t.Run("requests stay on their node, or else in their zone", func(t *testing.T) {
		// proves: 110, 111
		s.nodeHints(t)
	})

	t.Run("hints do not affect node ports with policy Local", func(t *testing.T) {
		svc := s.service(t, `
metadata: {name: hints-local}
spec: {type: NodePort, externalTrafficPolicy: Local}
---
endpoints:
- {addresses: [web-1], hints: {forZones: [{name: zone-b}]}}
- {addresses: [web-2], hints: {forZones: [{name: zone-a}]}}`)
		for _, f := range s.FamilyList() {
			reach(t, s.outside, http, svc.AtNode(s.node1, f), "web-1", s.outside.Addr(f))
			reach(t, s.outside, http, svc.AtNode(s.node2, f), "web-2", s.outside.Addr(f))
		}
	})

	t.Run("the zone of the node changes", func(t *testing.T) {
		svc := s.service(t, `
metadata: {name: moving-zone}
---
endpoints:
- {addresses: [web-1], hints: {forZones: [{name: zone-a}]}}
- {addresses: [web-2], hints: {forZones: [{name: zone-b}]}}`)
		s.awaitPod(t, s.node3, svc, s.otherNode)
		t.Cleanup(func() { s.applyLate(t, nodeManifest(s.node3)) })
		s.apply(t, strings.Replace(nodeManifest(s.node3), "zone-b", "zone-a", 1))
		s.awaitPod(t, s.node3, svc, s.sameNode)
		s.onlyFrom(t, s.farClient.Host, svc, "web-1")
	})
}

// awaitPod waits until a pod is the only destination in each family. The slices of the two families arrive
// independently.
func (s *stage) awaitPod(t *testing.T, node *cluster.Node, svc service, pod *cluster.Pod) {
	t.Helper()
	for _, f := range s.FamilyList() {
		awaitDestinations(t, node, http, svc.At(f, http), pod.At(f, http.Target))
	}
}

func (s *stage) onlyFrom(t *testing.T, from *cluster.Host, svc service, server string) {
	t.Helper()
	for _, f := range s.FamilyList() {
		from.Await(t, patience, cluster.TCP, svc.At(f, http))
		for range 5 {
			if got := from.Get(t, cluster.TCP, svc.At(f, http), slowly); got.Server != server {
				t.Errorf("%s from %s: want answers only from %s, got %s", f, from.Name, server, got.Server)
			}
		}
	}
}

// fromBoth waits until both endpoints have answered. Without IPVS, each request reaches a random endpoint.
func (s *stage) fromBoth(t *testing.T, from *cluster.Host, svc service) {
	t.Helper()
	for _, f := range s.FamilyList() {
		from.Await(t, patience, cluster.TCP, svc.At(f, http))
		cluster.Eventually(t, patience, fmt.Sprintf("%s: both endpoints answer %s", f, from.Name), func() error {
			if counts := from.Spread(t, 4, cluster.TCP, svc.At(f, http), slowly); len(counts) != 2 {
				return fmt.Errorf("answers came from %v", counts)
			}
			return nil
		})
	}
}

func (s *stage) nodeHints(t *testing.T) {
	const two = "{addresses: [web-2], hints: {forNodes: [{name: node-2}], forZones: [{name: zone-b}]}}"
	svc := s.service(t, `
metadata: {name: nodes}
---
endpoints:
- {addresses: [web-1], hints: {forNodes: [{name: node-1}], forZones: [{name: zone-a}]}}
- `+two)
	s.awaitPod(t, s.node1, svc, s.sameNode)
	s.awaitPod(t, s.node3, svc, s.otherNode)
	s.onlyFrom(t, s.client.Host, svc, "web-1")
	s.onlyFrom(t, s.node2.Host, svc, "web-2")
	s.onlyFrom(t, s.farClient.Host, svc, "web-2")
	s.apply(t, svc.With("endpoints: ["+two+"]").SlicesYAML())
	s.awaitPod(t, s.node1, svc, s.otherNode)
	s.onlyFrom(t, s.client.Host, svc, "web-2")
	s.apply(t, svc.SlicesYAML())
	s.awaitPod(t, s.node1, svc, s.sameNode)
	s.onlyFrom(t, s.client.Host, svc, "web-1")
}
