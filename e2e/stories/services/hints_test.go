package services

import (
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// TestHints plays the slice controller, which turns trafficDistribution and the annotation into hints: node-1 is in zone-a,
// node-2 and node-3 are in zone-b.
func TestHints(t *testing.T) {
	s := onStage(t)
	zoneA, zoneB := "forZones: [{name: zone-a}]", "forZones: [{name: zone-b}]"
	only := func(t *testing.T, from *cluster.Host, svc service, server string) {
		t.Helper()
		for _, f := range s.FamilyList() {
			from.Await(t, patience, cluster.TCP, svc.at(f, http))
			for range 5 {
				if got := from.Get(t, cluster.TCP, svc.at(f, http), slowly); got.Server != server {
					t.Errorf("%s from %s: want only %s to answer, got %s", f, from.Name, server, got.Server)
				}
			}
		}
	}
	both := func(t *testing.T, from *cluster.Host, svc service) {
		t.Helper()
		for _, f := range s.FamilyList() {
			from.Await(t, patience, cluster.TCP, svc.at(f, http))
			if counts := from.Spread(t, 4, cluster.TCP, svc.at(f, http), slowly); len(counts) != 2 {
				t.Errorf("%s from %s: want both endpoints to answer: %v", f, from.Name, counts)
			}
		}
	}

	t.Run("requests stay in their zone", func(t *testing.T) {
		// proves: 105, 106, 107, 108, 109
		svc := s.define("zones", podEndpoint(s.sameNode).hinted(zoneA), podEndpoint(s.otherNode).hinted(zoneB))
		s.create(t, svc)
		s.awaitTable(t, s.node1, serverKey(svc.ips[0], http), []string{s.sameNode.At(cluster.V4, http.target)})
		s.awaitTable(t, s.node3, serverKey(svc.ips[0], http), []string{s.otherNode.At(cluster.V4, http.target)})
		only(t, s.client.Host, svc, "web-1")
		only(t, s.node1.Host, svc, "web-1")
		only(t, s.farClient.Host, svc, "web-2") // another node of the zone
	})

	t.Run("one endpoint without hints, or none for the zone: all of them", func(t *testing.T) {
		svc := s.define("half-hinted", podEndpoint(s.sameNode).hinted(zoneA), podEndpoint(s.otherNode))
		s.create(t, svc)
		both(t, s.client.Host, svc)
		s.change(t, svc.to(podEndpoint(s.sameNode).hinted(zoneA), podEndpoint(s.otherNode).hinted(zoneA)))
		both(t, s.farClient.Host, svc)
	})

	t.Run("requests stay on their node, else in the zone", func(t *testing.T) {
		// proves: 110, 111
		one := podEndpoint(s.sameNode).hinted("forNodes: [{name: node-1}], " + zoneA)
		two := podEndpoint(s.otherNode).hinted("forNodes: [{name: node-2}], " + zoneB)
		svc := s.define("nodes", one, two)
		s.create(t, svc)
		s.awaitTable(t, s.node1, serverKey(svc.ips[0], http), []string{s.sameNode.At(cluster.V4, http.target)})
		s.awaitTable(t, s.node3, serverKey(svc.ips[0], http), []string{s.otherNode.At(cluster.V4, http.target)})
		only(t, s.client.Host, svc, "web-1")
		only(t, s.node2.Host, svc, "web-2")
		only(t, s.farClient.Host, svc, "web-2") // no endpoint on node-3: its zone
		s.apply(t, svc.to(two).slices())
		s.awaitTable(t, s.node1, serverKey(svc.ips[0], http), []string{s.otherNode.At(cluster.V4, http.target)})
		s.awaitTable(t, s.node1, serverKey(svc.ips[1], http), []string{s.otherNode.At(cluster.V6, http.target)})
		only(t, s.client.Host, svc, "web-2")
		s.apply(t, svc.slices())
		s.awaitTable(t, s.node1, serverKey(svc.ips[0], http), []string{s.sameNode.At(cluster.V4, http.target)})
		s.awaitTable(t, s.node1, serverKey(svc.ips[1], http), []string{s.sameNode.At(cluster.V6, http.target)})
		only(t, s.client.Host, svc, "web-1")
	})

	t.Run("hints do not matter to node ports with policy Local", func(t *testing.T) {
		svc := s.defineNodePort("hints-local", podEndpoint(s.sameNode).hinted(zoneB), podEndpoint(s.otherNode).hinted(zoneA)).
			with(externalLocal)
		s.create(t, svc)
		for _, f := range s.FamilyList() {
			reach(t, s.outside, http, svc.atNode(s.node1, f), "web-1", s.outside.Addr(f))
			reach(t, s.outside, http, svc.atNode(s.node2, f), "web-2", s.outside.Addr(f))
		}
	})

	t.Run("the zone of the node changes", func(t *testing.T) {
		svc := s.define("moving-zone", podEndpoint(s.sameNode).hinted(zoneA), podEndpoint(s.otherNode).hinted(zoneB))
		s.create(t, svc)
		s.awaitTable(t, s.node3, serverKey(svc.ips[0], http), []string{s.otherNode.At(cluster.V4, http.target)})
		t.Cleanup(func() { s.applyLate(t, nodeManifest(s.node3)) })
		s.apply(t, strings.Replace(nodeManifest(s.node3), "zone-b", "zone-a", 1))
		s.awaitTable(t, s.node3, serverKey(svc.ips[0], http), []string{s.sameNode.At(cluster.V4, http.target)})
		s.awaitTable(t, s.node3, serverKey(svc.ips[1], http), []string{s.sameNode.At(cluster.V6, http.target)})
		only(t, s.farClient.Host, svc, "web-1")
	})
}
