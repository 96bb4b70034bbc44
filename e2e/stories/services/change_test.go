package services

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

func TestChanges(t *testing.T) {
	s := onStage(t)

	t.Run("type and ports of a TCP Service", func(t *testing.T) {
		// proves: 112
		s.changeType(t, "TCP", http)
	})
	t.Run("type and ports of a UDP Service", func(t *testing.T) {
		// proves: 113
		s.changeType(t, "UDP", dns)
	})
	t.Run("ExternalName and back", func(t *testing.T) {
		// proves: 13, 14, 15, 16
		s.externalName(t)
	})
	t.Run("TCP and UDP at one port, then one of them", func(t *testing.T) {
		// proves: 45, 46
		s.protocolsOfOnePort(t)
	})
	t.Run("labels that hand Services and slices to other proxies", func(t *testing.T) {
		// proves: 29, 30
		s.changeLabels(t)
	})
	t.Run("a named port with a different number in each slice", func(t *testing.T) {
		// proves: 2, 51, 129, 130
		s.portsOfSlices(t)
	})
	inKernel(t, noSCTP, "an SCTP Service does not load the SCTP module", func(t *testing.T) {
		// proves: 47
		if s.sctpLoaded != nil {
			t.Error(s.sctpLoaded)
		}
	})
}

func (s *stage) externalName(t *testing.T) {
	nodePort := s.define(`
metadata: {name: ext-name}
spec: {type: NodePort}
---
endpoints: [{addresses: [web-2]}]`)
	t.Cleanup(func() { s.remove(t, nodePort.YAML()) })
	name := `
apiVersion: v1
kind: Service
metadata: {name: ext-name}
spec: {type: ExternalName, externalName: example.org}
`
	for _, now := range []service{nodePort.With("spec: {type: ClusterIP}"), nodePort} {
		hasNodePort := now.NodePort() != 0
		s.apply(t, name)
		s.change(t, now)
		for _, f := range s.FamilyList() {
			reach(t, s.client.Host, http, now.At(f, http), "web-2", s.client.Addr(f))
			if hasNodePort {
				reach(t, s.outside, http, now.AtNode(s.node3, f), "web-2", s.node3.Addr(f))
			}
		}
		s.apply(t, name)
		s.awaitNoServer(t, s.node3, now, http)
		if hasNodePort {
			becomes(t, s.outside, http, now.AtNode(s.node3, cluster.V4), cluster.Refused)
			becomes(t, s.outside, http, now.AtNode(s.node3, cluster.V6), cluster.Refused)
		}
	}
}

func (s *stage) protocolsOfOnePort(t *testing.T) {
	s.otherNode.Serve(t, cluster.TCP, 5353)
	both := s.define(`
metadata: {name: one-port}
spec:
  type: LoadBalancer
  ports: [{name: tcp, port: 53, targetPort: 5353}, {name: udp, protocol: UDP, port: 53, targetPort: 5353}]
---
endpoints: [{addresses: [web-2]}]`)
	onlyTCP := both.With("spec: {ports: [{name: tcp, port: 53, targetPort: 5353}]}")
	onlyUDP := both.With("spec: {ports: [{name: udp, protocol: UDP, port: 53, targetPort: 5353}]}")
	s.create(t, both)
	for _, step := range []struct {
		svc      service
		tcp, udp cluster.Outcome
	}{
		{both, cluster.Answered, cluster.Answered},
		{onlyTCP, cluster.Answered, cluster.Refused},
		{onlyUDP, cluster.Refused, cluster.Answered},
		{both, cluster.Answered, cluster.Answered},
	} {
		s.change(t, step.svc)
		for _, f := range s.FamilyList() {
			for p, want := range map[port]cluster.Outcome{
				{Protocol: cluster.TCP, Number: 53}: step.tcp,
				{Protocol: cluster.UDP, Number: 53}: step.udp,
			} {
				becomes(t, s.client.Host, p, both.At(f, p), want)
				becomes(t, s.farClient.Host, p, both.AtBalancer(f, p), want)
			}
		}
	}
}

func (s *stage) changeLabels(t *testing.T) {
	svc := s.service(t, `
metadata: {name: relabeled}
spec: {type: NodePort}
---
endpoints: [{addresses: [web-2]}]`)
	reach(t, s.client.Host, http, svc.At(cluster.V4, http), "web-2", s.client.V4)
	s.apply(t, svc.With("metadata: {labels: {service.kubernetes.io/service-proxy-name: another-proxy}}").ServiceYAML())
	s.awaitNoServer(t, s.node3, svc, http)
	becomes(t, s.outside, http, svc.AtNode(s.node3, cluster.V4), cluster.Refused)
	s.change(t, svc)
	reach(t, s.outside, http, svc.AtNode(s.node3, cluster.V4), "web-2", s.node3.V4)

	s.apply(t, svc.With(`
kind: EndpointSlice
metadata: {labels: {service.kubernetes.io/headless: ""}}`).SlicesYAML())
	for _, f := range s.FamilyList() {
		becomes(t, s.client.Host, http, svc.At(f, http), cluster.Refused)
	}
	s.apply(t, svc.SlicesYAML())
	for _, f := range s.FamilyList() {
		reach(t, s.client.Host, http, svc.At(f, http), "web-2", s.client.Addr(f))
	}
}

func (s *stage) portsOfSlices(t *testing.T) {
	s.otherNode.Serve(t, cluster.TCP, 9091, cluster.As("web-2-at-9091"))
	s.otherNode.Serve(t, cluster.TCP, 9092, cluster.As("web-2-admin"))
	s.sameNode.Serve(t, cluster.TCP, 9092, cluster.As("web-1-admin"))
	svc := s.service(t, `
metadata: {name: slices-ports}
spec: {ports: [{name: http, port: 80, targetPort: 8080}, {name: admin, port: 81, targetPort: 9092}]}
---
endpoints: [{addresses: [web-1]}]`)
	more := svc.With(`
ports: [{name: http, port: 9091}, {name: admin, port: 9092}]
endpoints: [{addresses: [web-2]}]`).MoreSlicesYAML("-more")
	s.apply(t, more)
	t.Cleanup(func() { s.remove(t, more) })
	for _, f := range s.FamilyList() {
		for number, want := range map[uint16][]string{80: {"web-1", "web-2-at-9091"}, 81: {"web-1-admin", "web-2-admin"}} {
			at := svc.At(f, port{Protocol: cluster.TCP, Number: number})
			cluster.Eventually(t, patience, "the endpoints of both slices answer at "+at, func() error {
				servers := map[string]bool{}
				for range 4 {
					servers[s.client.Probe(cluster.TCP, at, slowly).Reply.Server] = true
				}
				if len(servers) != 2 || !servers[want[0]] || !servers[want[1]] {
					return fmt.Errorf("%v", servers)
				}
				return nil
			})
		}
	}
}

// changeType follows the upstream Kubernetes test.
func (s *stage) changeType(t *testing.T, protocol string, p port) {
	yaml := func(text string) string {
		return strings.NewReplacer("PROTOCOL", protocol, "TARGET", fmt.Sprint(p.Target)).Replace(text)
	}
	full := s.define(yaml(`
metadata: {name: type-TARGET}
spec:
  type: LoadBalancer
  ports: [{name: main, protocol: PROTOCOL, port: 80, targetPort: TARGET, nodePort: 30500}]
---
endpoints: [{addresses: [web-2]}]`))
	t.Cleanup(func() { s.remove(t, full.YAML()) })
	now := full
	for _, step := range []struct {
		name, change   string
		node, balancer bool // open frontends in addition to the ClusterIP
	}{
		{"ClusterIP", "spec: {type: ClusterIP, ports: [{name: main, protocol: PROTOCOL, port: 80, targetPort: TARGET}]}", false, false},
		{"NodePort", "spec: {type: NodePort, ports: [{name: main, protocol: PROTOCOL, port: 80, targetPort: TARGET, nodePort: 30500}]}", true, false},
		{"another node port", "spec: {ports: [{name: main, protocol: PROTOCOL, port: 80, targetPort: TARGET, nodePort: 31500}]}", true, false},
		{"LoadBalancer", "spec: {type: LoadBalancer}", true, true},
		{"another port", "spec: {ports: [{name: main, protocol: PROTOCOL, port: 1080, targetPort: TARGET, nodePort: 31500}]}", true, true},
		{"NodePort again", "spec: {type: NodePort}", true, false},
		{"ClusterIP again", "spec: {type: ClusterIP, ports: [{name: main, protocol: PROTOCOL, port: 1080, targetPort: TARGET}]}", false, false},
	} {
		now = now.With(yaml(step.change))
		t.Run(step.name, func(t *testing.T) {
			s.apply(t, now.YAML())
			s.checkFrontends(t, now, full, step.node, step.balancer)
		})
	}
}

func (s *stage) checkFrontends(t *testing.T, svc, full service, node, balancer bool) {
	t.Helper()
	p := svc.Ports()[0]
	outcome := map[bool]cluster.Outcome{true: cluster.Answered, false: cluster.Refused}
	for _, f := range s.FamilyList() {
		reach(t, s.client.Host, p, svc.At(f, p), "web-2", s.client.Addr(f))
		for _, number := range []uint16{30500, 31500} {
			becomes(t, s.outside, p, s.node3.At(f, number), outcome[node && number == svc.NodePort()])
		}
		for _, number := range []uint16{80, 1080} {
			at := full.AtBalancer(f, port{Number: number})
			if balancer {
				becomes(t, s.client.Host, p, at, outcome[number == p.Number])
			} else {
				eventuallyUnserved(t, s.client.Host, p, at)
			}
		}
	}
}

func eventuallyUnserved(t *testing.T, from *cluster.Host, p port, at string) {
	t.Helper()
	cluster.Eventually(t, patience, from.Name+" gets no answer at "+at, func() error {
		if r := from.Probe(p.Protocol, at, cluster.Within(cluster.DefaultSilence)); r.Outcome == cluster.Answered {
			return fmt.Errorf("%s", r)
		}
		return nil
	})
}
