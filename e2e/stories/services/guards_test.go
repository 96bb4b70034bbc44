package services

import (
	"fmt"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// TestGuards sends packets while guards are added and removed. The guard must always block its clients, and no
// packet to another port may be lost.
func TestGuards(t *testing.T) {
	s := onStage(t)
	cluster.NeedPauses(t)
	t.Run("ports whose endpoints leave the node and return", func(t *testing.T) { s.guardsOfPolicies(t) })
	t.Run("addresses with source ranges", func(t *testing.T) { s.guardsOfRanges(t) })
	t.Run("a new source range and open connections", func(t *testing.T) { s.guardAndConnections(t) })
	t.Run("node ports that lose their endpoints", func(t *testing.T) { s.guardsOfEmptyPorts(t) })
}

func (s *stage) bystanders(t *testing.T) []*requests {
	open := s.service(t, `
metadata: {name: open}
spec: {type: NodePort}
---
endpoints: [{addresses: [web-2]}]`)
	var all []*requests
	for _, f := range s.FamilyList() {
		all = append(all, keepRequesting(t, s.outside, dns, open.AtNode(s.node3, f)), keepRequesting(t, s.farClient.Host, dns, open.At(f, dns)))
	}
	return all
}

func mustNotHaveFailed(t *testing.T, all []*requests) {
	t.Helper()
	for _, a := range all {
		a.awaitMore(t, 5)
		a.mustNeverFail(t)
	}
}

func (s *stage) guardsOfPolicies(t *testing.T) {
	here := s.node3.Pod(t, "guarded-3")
	t.Cleanup(func() { _ = here.Delete() })
	here.Serve(t, cluster.UDP, dns.Target)
	near := s.define(`
metadata: {name: guarded}
spec: {type: NodePort, externalTrafficPolicy: Local, internalTrafficPolicy: Local}
---
endpoints: [{addresses: [guarded-3]}]`)
	far := near.With("endpoints: [{addresses: [web-1]}]")
	s.create(t, near)
	unharmed := s.bystanders(t)
	var guarded []*requests
	past := func() (n int) { // outside requests that reached an endpoint on another node, which cannot answer the client
		for _, f := range s.FamilyList() {
			n += requestsFrom(s.servers[s.sameNode][cluster.UDP], s.outside.Addr(f))
		}
		return n
	}
	before := past()
	for _, f := range s.FamilyList() {
		settles(t, s.outside, dns, near.AtNode(s.node3, f), "guarded-3", s.outside.Addr(f))
		guarded = append(guarded, keepTrying(t, s.outside, dns, near.AtNode(s.node3, f)), keepTrying(t, s.farClient.Host, dns, near.At(f, dns)))
	}
	s.apply(t, far.SlicesYAML())
	for _, f := range s.FamilyList() {
		becomes(t, s.outside, dns, near.AtNode(s.node3, f), cluster.Timeout)
		becomes(t, s.farClient.Host, dns, near.At(f, dns), cluster.Timeout)
		reach(t, s.farClient.Host, dns, near.AtNode(s.node3, f), "web-1", s.farClient.Addr(f))
	}
	s.apply(t, near.SlicesYAML())
	for _, f := range s.FamilyList() {
		settles(t, s.outside, dns, near.AtNode(s.node3, f), "guarded-3", s.outside.Addr(f))
		settles(t, s.farClient.Host, dns, near.At(f, dns), "guarded-3", s.farClient.Addr(f))
	}
	for _, a := range guarded {
		a.mustReachOnly(t, "guarded-3")
	}
	if n := past() - before; n > 0 {
		t.Errorf("%d outside requests passed the guard", n)
	}
	mustNotHaveFailed(t, unharmed)
}

func (s *stage) guardsOfRanges(t *testing.T) {
	svc := s.service(t, `
metadata: {name: ranged}
spec: {type: LoadBalancer, allocateLoadBalancerNodePorts: false, loadBalancerSourceRanges: [client-1]}
---
endpoints: [{addresses: [web-2]}]`)
	all := s.bystanders(t)
	var outsiders []*requests
	for _, f := range s.FamilyList() {
		all = append(all, keepRequesting(t, s.outside, dns, svc.AtBalancer(f, dns)))
		outsiders = append(outsiders,
			keepTrying(t, s.otherOutside, dns, svc.AtBalancer(f, dns)), keepTrying(t, s.node1.Host, dns, svc.AtBalancer(f, dns)))
	}
	s.change(t, svc.With("spec: {ports: [{name: http, port: 80, targetPort: 8080}, {name: dns, protocol: UDP, port: 80, targetPort: 5353}, "+
		"{name: more, port: 81, targetPort: 8080}]}"))
	for _, f := range s.FamilyList() {
		s.outside.Await(t, patience, cluster.TCP, svc.AtBalancer(f, port{Protocol: cluster.TCP, Number: 81}))
		s.otherOutside.MustTimeout(t, cluster.TCP, svc.AtBalancer(f, port{Protocol: cluster.TCP, Number: 81}))
	}
	s.change(t, svc)
	for _, a := range outsiders {
		a.mustReachOnly(t, "nobody")
	}
	s.change(t, svc.With("spec: {loadBalancerSourceRanges: null}"))
	for _, f := range s.FamilyList() {
		for _, host := range []*cluster.Host{s.otherOutside, s.node1.Host} {
			becomes(t, host, dns, svc.AtBalancer(f, dns), cluster.Answered)
		}
	}
	mustNotHaveFailed(t, all)
}

// guardAndConnections: a new source range ends no answered TCP connection, and stops unanswered flows at the next datagram.
func (s *stage) guardAndConnections(t *testing.T) {
	pod := s.node2.Pod(t, "ranged-2")
	t.Cleanup(func() { _ = pod.Delete() })
	logs := port{Protocol: cluster.UDP, Number: 514}
	pod.Serve(t, http.Protocol, http.Target)
	collector := pod.Serve(t, logs.Protocol, 5456, cluster.Silent())
	svc := s.service(t, `
metadata: {name: open-ranged}
spec:
  type: LoadBalancer
  allocateLoadBalancerNodePorts: false
  ports: [{name: http, port: 80, targetPort: 8080}, {name: logs, protocol: UDP, port: 514, targetPort: 5456}]
---
endpoints: [{addresses: [ranged-2]}]`)
	var open []*cluster.Conn
	for _, f := range s.FamilyList() {
		s.outside.Await(t, patience, http.Protocol, svc.AtBalancer(f, http))
		open = append(open, s.outside.Open(t, http.Protocol, svc.AtBalancer(f, http), slowly))
		s.outside.StartSender(t, svc.AtBalancer(f, logs), 10*time.Millisecond)
	}
	cluster.Eventually(t, soon, "the collector gets datagrams of each family", func() error {
		if from := collector.Sources(); len(from) < len(s.FamilyList()) {
			return fmt.Errorf("only from %v", from)
		}
		return nil
	})
	s.change(t, svc.With("spec: {loadBalancerSourceRanges: [client-2]}"))
	for _, f := range s.FamilyList() {
		eventuallyUnserved(t, s.outside, http, svc.AtBalancer(f, http))
		becomes(t, s.otherOutside, http, svc.AtBalancer(f, http), cluster.Answered)
	}
	quiet(t, collector)
	for _, c := range open {
		c.MustPing(t)
	}
	for _, f := range s.FamilyList() {
		s.outside.MustTimeout(t, http.Protocol, svc.AtBalancer(f, http))
	}
}

func (s *stage) guardsOfEmptyPorts(t *testing.T) {
	svc := s.service(t, `
metadata: {name: emptied}
spec: {type: NodePort}
---
endpoints: [{addresses: [web-2]}]`)
	daemon := &cluster.Server{}
	if !cluster.Userspace() { // where no rule keeps the daemon from answering
		daemon = s.node3.Serve(t, cluster.UDP, svc.NodePort(), cluster.As("a-daemon"))
	}
	unharmed := s.bystanders(t)
	var emptied []*requests
	for _, f := range s.FamilyList() {
		s.outside.Await(t, patience, cluster.UDP, svc.AtNode(s.node3, f))
		emptied = append(emptied, keepTrying(t, s.outside, dns, svc.AtNode(s.node3, f)))
	}
	s.apply(t, svc.With("endpoints: []").SlicesYAML())
	for _, f := range s.FamilyList() {
		becomes(t, s.outside, dns, svc.AtNode(s.node3, f), cluster.Refused)
	}
	hold(t, emptied)
	s.apply(t, svc.SlicesYAML())
	for _, f := range s.FamilyList() {
		becomes(t, s.outside, dns, svc.AtNode(s.node3, f), cluster.Answered)
	}
	hold(t, emptied)
	for _, a := range emptied {
		a.mustReachOnly(t, "web-2")
	}
	if n := daemon.Requests(); n > 0 {
		t.Errorf("a daemon on the node received %d requests", n)
	}
	mustNotHaveFailed(t, unharmed)
}
