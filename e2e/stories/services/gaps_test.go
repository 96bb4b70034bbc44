package services

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// TestGaps sends requests during changes and failures. No request may fail, no connection may break, and no closed
// port may open, even for an instant.
func TestGaps(t *testing.T) {
	s := onStage(t)
	cluster.NeedPauses(t)

	t.Run("a rolling update loses no request", func(t *testing.T) {
		// proves: 123, 124, 134, 135, 136
		s.rollingUpdate(t)
	})
	t.Run("two Services with the same endpoints, one is deleted", func(t *testing.T) {
		// proves: 6, 68
		s.sharedEndpoints(t)
	})
	inKernel(t, withProcess, "the agent is killed and restarted under open connections", func(t *testing.T) { s.restart(t) })
	inKernel(t, withProcess, "the agent restarts under load, with every kind of Service", func(t *testing.T) {
		// proves: 8
		s.restartAll(t)
	})
	t.Run("kube-ipvs0 is renamed", func(t *testing.T) { s.renamedDevice(t) })
	inKernel(t, alwaysRoutes, "virtual addresses become routes, and addresses again", func(t *testing.T) { s.rebind(t) })
	inKernel(t, ownNamespace, "the node's own ports are closed from the first instant, ping works, issue 72236", func(t *testing.T) {
		s.closedFromTheStart(t)
	})
	// On every sync, kube-proxy removes a one-address range from its set and adds it again, and packets in between are
	// dropped.
	t.Run("source ranges of one address never open a gap", func(t *testing.T) {
		// proves: 143
		s.steadyRanges(t)
	})
}

// rollingUpdate replaces the pods one by one, as a Deployment does.
func (s *stage) rollingUpdate(t *testing.T) {
	pod := func(node *cluster.Node, name string) *cluster.Pod {
		p := node.Pod(t, name)
		t.Cleanup(func() { _ = p.Delete() })
		p.Serve(t, cluster.TCP, http.Target)
		return p
	}
	pods := []*cluster.Pod{pod(s.node1, "roll-1a"), pod(s.node2, "roll-2a")}
	whole := s.service(t, `
metadata: {name: rolling}
spec: {type: LoadBalancer, ports: [{name: http, port: 80, targetPort: 8080}]}
---
endpoints: [{addresses: [roll-1a]}, {addresses: [roll-2a]}]`)
	local := s.service(t, `
metadata: {name: rolling-local}
spec: {type: LoadBalancer, externalTrafficPolicy: Local, ports: [{name: http, port: 80, targetPort: 8080}]}
---
endpoints: [{addresses: [roll-1a]}, {addresses: [roll-2a]}]`)
	var clients []*requests
	ask := func(from *cluster.Host, at string) {
		clients = append(clients, keepRequesting(t, from, http, at))
	}
	ask(s.outside, whole.AtNode(s.node3, cluster.V4))
	ask(s.outside, whole.AtBalancer(cluster.V6, http))
	ask(s.farClient.Host, whole.At(cluster.V4, http))
	ask(s.outside, local.AtBalancer(cluster.V4, http))
	ask(s.otherOutside, local.AtNode(s.node2, cluster.V6))
	apply := func(old *cluster.Pod, state string) {
		t.Helper()
		endpoints := fmt.Sprintf("endpoints: [{addresses: [%s]}, {addresses: [%s]}", pods[0].Name, pods[1].Name)
		if old != nil {
			endpoints += fmt.Sprintf(", {addresses: [%s]%s}", old.Name, state)
		}
		whole, local = whole.With(endpoints+"]"), local.With(endpoints+"]")
		s.change(t, whole)
		s.change(t, local)
		for i, node := range s.Nodes[:2] {
			for _, f := range s.FamilyList() {
				here := []string{pods[i].At(f, http.Target)}
				if old != nil && old.Node == node && state == "" {
					here = append(here, old.At(f, http.Target))
				}
				awaitDestinations(t, node, http, local.AtBalancer(f, http), here...)
			}
		}
	}
	for i, old := range pods {
		pods[i] = pod(old.Node, strings.Replace(old.Name, "a", "b", 1))
		apply(old, "")
		apply(old, ", conditions: {ready: false, serving: true, terminating: true}")
		// The terminating pod accepts and opens connections. Await retries because the first attempt can fail: this
		// client has just made thousands of connections to this pod through the Service, and IPVS can mistake a direct
		// connection from the same client port for one of these connections. See docs/known-limits.md.
		if got := s.farClient.Await(t, patience, cluster.TCP, old.At(cluster.V4, http.Target)); got.Server != old.Name {
			t.Errorf("%s: %s answered instead", old.Name, got.Server)
		}
		old.Get(t, cluster.TCP, whole.At(cluster.V4, http), slowly)
		apply(nil, "")
		for _, c := range clients {
			c.awaitMore(t, 3)
		}
		if err := old.Delete(); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range clients {
		c.mustNeverFail(t)
	}
}

func (s *stage) sharedEndpoints(t *testing.T) {
	one := s.service(t, `
metadata: {name: twin-1}
---
endpoints: [{addresses: [web-2]}]`)
	two := s.service(t, `
metadata: {name: twin-2}
---
endpoints: [{addresses: [web-2]}]`)
	for _, f := range s.FamilyList() {
		reach(t, s.client.Host, http, one.At(f, http), "web-2", s.client.Addr(f))
		reach(t, s.client.Host, http, two.At(f, http), "web-2", s.client.Addr(f))
	}
	flows := s.client.OpenFlows(t, 2, cluster.TCP, two.At(cluster.V4, http), cluster.FlowConfig{Within: patience})
	s.remove(t, one.YAML())
	s.awaitNoServer(t, s.node1, one, http)
	flows.AwaitRound(t, patience)
	flows.MustBeUnharmed(t)
	s.service(t, `
metadata: {name: twin-3}
---
endpoints: [{addresses: [web-1]}]`)
	reach(t, s.client.Host, http, two.At(cluster.V6, http), "web-2", s.client.V6)
}

func (s *stage) restart(t *testing.T) {
	svc := s.service(t, `
metadata: {name: restart}
---
endpoints: [{addresses: [web-1]}, {addresses: [web-2]}]`)
	config := cluster.FlowConfig{Within: 20 * time.Second, Every: 500 * time.Millisecond}
	flows := s.client.OpenFlows(t, 40, cluster.TCP, svc.At(cluster.V4, http), config)
	flows6 := s.client.OpenFlows(t, 40, cluster.TCP, svc.At(cluster.V6, http), config)
	s.agents[s.node1].Kill()
	s.client.Get(t, cluster.TCP, svc.At(cluster.V4, http), slowly)
	s.startAgent(t, s.node1)
	s.agents[s.node1].AwaitLog(t, patience, "initial sync complete")
	flows.AwaitRound(t, patience)
	flows6.AwaitRound(t, patience)
	flows.MustBeUnharmed(t)
	flows6.MustBeUnharmed(t)
}

func (s *stage) restartAll(t *testing.T) {
	svc := s.service(t, `
metadata: {name: restart-all}
spec: {type: LoadBalancer, loadBalancerSourceRanges: [client-1]}
---
endpoints: [{addresses: [web-1]}, {addresses: [web-2]}]`)
	local := s.service(t, `
metadata: {name: restart-local}
spec: {type: NodePort, externalTrafficPolicy: Local}
---
endpoints: [{addresses: [web-1]}]`)
	config := cluster.FlowConfig{Within: patience, Every: 300 * time.Millisecond}
	var flows []*cluster.Flows
	var clients []*requests
	for _, f := range s.FamilyList() {
		for _, at := range []string{svc.AtBalancer(f, http), svc.AtNode(s.node1, f), local.AtNode(s.node1, f)} {
			s.outside.Await(t, patience, cluster.TCP, at)
			flows = append(flows, s.outside.OpenFlows(t, 3, cluster.TCP, at, config))
		}
		for _, at := range []string{svc.AtBalancer(f, dns), local.AtNode(s.node1, f)} {
			clients = append(clients, keepRequesting(t, s.outside, dns, at))
		}
	}
	for _, stop := range []func(){s.agents[s.node1].Kill, func() {
		if err := s.agents[s.node1].Stop(patience); err != nil {
			t.Errorf("SIGTERM: %v", err)
		}
	}} {
		stop()
		for _, c := range clients {
			c.awaitMore(t, 2)
		}
		s.startAgent(t, s.node1)
		s.agents[s.node1].AwaitLog(t, patience, "initial sync complete")
		for _, c := range clients {
			c.awaitMore(t, 2)
		}
	}
	for _, f := range flows {
		f.AwaitRound(t, patience)
		f.MustBeUnharmed(t)
	}
	for _, c := range clients {
		c.mustNeverFail(t)
	}
}

// renamedDevice renames kube-ipvs0 under load. The agent must not treat the device's addresses as the node's own.
func (s *stage) renamedDevice(t *testing.T) {
	svc := s.service(t, `
metadata: {name: renamed}
spec: {type: LoadBalancer}
---
endpoints: [{addresses: [web-2]}]`)
	var clients []*requests
	for _, f := range s.FamilyList() {
		clients = append(clients, keepRequesting(t, s.node3.Host, http, svc.At(f, http)),
			keepRequesting(t, s.outside, http, svc.AtNode(s.node3, f)))
	}
	open := s.node3.Open(t, http.Protocol, svc.At(cluster.V4, http), slowly)
	s.node3.MustRun(t, "ip", "link", "set", "kube-ipvs0", "name", "old")
	cluster.Eventually(t, patience, "the agent recreates kube-ipvs0", func() error {
		_, err := s.node3.Run("ip", "link", "show", "kube-ipvs0")
		return err
	})
	for _, c := range clients {
		c.awaitMore(t, 20)
		c.mustNeverFail(t)
	}
	open.MustPing(t)
	if err := serves(s.node3, svc); err != nil {
		t.Error(err)
	}
	if out, err := s.node3.Run("ip", "link", "show", "old"); err == nil {
		t.Errorf("the old name still exists: %s", out)
	}
}

// rebind changes the setting addresses under load: the node, a pod and an outside client keep sending, and no request fails. With either
// setting, unserved ports are refused.
func (s *stage) rebind(t *testing.T) {
	svc := s.service(t, `
metadata: {name: rebind}
spec: {type: LoadBalancer}
---
endpoints: [{addresses: [web-2]}]`)
	var clients []*requests
	for _, f := range s.FamilyList() {
		clients = append(clients, keepRequesting(t, s.node1.Host, http, svc.At(f, http)), keepRequesting(t, s.client.Host, dns, svc.At(f, dns)),
			keepRequesting(t, s.outside, dns, svc.AtBalancer(f, dns)))
	}
	open := s.client.Open(t, http.Protocol, svc.At(cluster.V4, http), slowly)
	unserved := port{Protocol: cluster.TCP, Number: 81}
	for _, binding := range []string{"routes", "interface", "routes"} {
		s.restartAgent(t, s.node1, "--addresses", binding)
		addresses := s.node1.MustRun(t, "ip", "-o", "addr", "show", "dev", "kube-ipvs0", "to", svc.Spec.ClusterIPs[0])
		routes := s.node1.MustRun(t, "ip", "route", "show", "table", "local", "proto", "117")
		if hasAddresses, hasRoutes := addresses != "", routes != ""; hasAddresses != (binding == "interface") || hasRoutes == hasAddresses {
			t.Errorf("with %s, the addresses are %q, and the routes %q", binding, addresses, routes)
		}
		for _, f := range s.FamilyList() {
			for _, from := range []*cluster.Host{s.client.Host, s.outside} {
				from.MustRefuse(t, cluster.TCP, svc.AtBalancer(f, unserved), slowly)
			}
			reach(t, s.node1.Host, http, svc.At(f, http), "web-2", s.node1.Addr(f))
			if err := serves(s.node1, svc); err != nil {
				t.Error(err)
			}
		}
		open.MustPing(t)
		for _, c := range clients {
			c.awaitMore(t, 5)
		}
	}
	for _, c := range clients {
		c.mustNeverFail(t)
	}
	for _, damage := range []string{"ip route flush table local proto 117", "ip addr flush dev kube-ipvs0"} {
		s.node1.MustRun(t, "sh", "-c", damage)
		cluster.Eventually(t, patience, "the agent repairs "+damage, func() error { return serves(s.node1, svc) })
		reach(t, s.client.Host, http, svc.At(cluster.V4, http), "web-2", s.client.V4)
	}
}

// closedFromTheStart connects to ports on which the node listens at a Service's address, while the address is added
// and while the agent restarts.
func (s *stage) closedFromTheStart(t *testing.T) {
	daemons := []port{{Protocol: cluster.TCP, Number: 2222}}
	for i := range cluster.Size(1, 1000) { // a sample of all ports
		daemons = append(daemons, port{Protocol: []cluster.Protocol{cluster.UDP, cluster.TCP}[i%2], Number: 33 + 65*uint16(i)})
	}
	for _, d := range daemons {
		s.node1.Serve(t, d.Protocol, d.Number)
	}
	svc := s.define(`
metadata: {name: lb-72236}
spec: {type: LoadBalancer, ports: [{name: http, port: 80, targetPort: 8080}]}
---
endpoints: [{addresses: [web-2]}]`)
	var trying []*requests
	for first := range min(len(daemons), 8) {
		trying = append(trying, s.keepKnocking(t, svc, daemons[first:]))
	}
	s.create(t, svc)
	for _, f := range s.FamilyList() {
		s.client.Await(t, patience, cluster.TCP, svc.AtBalancer(f, http))
	}
	s.restartAgent(t, s.node1)
	for i, f := range s.FamilyList() {
		for _, from := range []*cluster.Host{s.client.Host, s.outside} {
			from.MustRun(t, "ping", "-c1", "-W5", svc.Balancer()[i])
			from.MustRefuse(t, cluster.TCP, svc.AtBalancer(f, daemons[0]), slowly)
			for _, d := range daemons[1:] { // the kernel limits ICMP errors, so some attempts get no answer at all
				if r := from.Probe(d.Protocol, svc.AtBalancer(f, d), cluster.Within(100*time.Millisecond)); r.Outcome == cluster.Answered {
					t.Errorf("%s %d: %s", d.Protocol, d.Number, r)
				}
			}
		}
	}
	attempts := 0
	for _, k := range trying {
		k.mustReachOnly(t, "")
		attempts += k.count()
	}
	t.Attr("figure", fmt.Sprintf("%d ports, %d attempts while the address was added and the agent restarted: none was open", len(daemons), attempts))
}

// keepKnocking tries one port after the other.
func (s *stage) keepKnocking(t *testing.T, svc service, ports []port) *requests {
	t.Helper()
	next := 0
	return keepCalling(t, "the node's own ports at "+svc.Name, func() cluster.Result {
		p := ports[next%len(ports)]
		next++
		return request(s.client.Host, p, svc.AtBalancer(cluster.V4, p), cluster.Within(100*time.Millisecond))
	})
}

func (s *stage) steadyRanges(t *testing.T) {
	svc := s.service(t, `
metadata: {name: lb-steady}
spec: {type: LoadBalancer, loadBalancerSourceRanges: [client-1]}
---
endpoints: [{addresses: [web-2]}, {addresses: [web-1]}]`)
	var clients []*requests
	for _, f := range s.FamilyList() {
		// Use UDP, because TCP would retransmit a lost packet.
		clients = append(clients, keepRequesting(t, s.outside, dns, svc.AtBalancer(f, dns)))
	}
	flows := s.outside.OpenFlows(t, 4, cluster.TCP, svc.AtBalancer(cluster.V4, http), cluster.FlowConfig{Within: 20 * time.Second})
	var other service
	for i := range 2 {
		s.apply(t, svc.With(fmt.Sprintf("spec: {loadBalancerSourceRanges: [client-1, 192.0.2.%d/32]}", i)).ServiceYAML())
		other = s.service(t, fmt.Sprintf(`
metadata: {name: lb-other-%d}
spec: {type: LoadBalancer, loadBalancerSourceRanges: [192.0.2.9/32]}
---
endpoints: [{addresses: [web-1]}]`, i))
		s.remove(t, other.YAML())
	}
	s.apply(t, svc.ServiceYAML())
	s.awaitNoServer(t, s.node1, other, http) // otherwise too many Services would disappear at once, and the next agent would wait
	if !cluster.Userspace() {
		s.restartAgent(t, s.node1, "--ipvs-sync-period", "1s")
	}
	flows.AwaitRound(t, patience)
	for _, a := range clients {
		a.mustNeverFail(t)
	}
	flows.MustBeUnharmed(t)
}
