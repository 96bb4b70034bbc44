package services

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// The kernel tracks a connection from its first packet, and sends every retransmitted SYN to the destination of
// that packet.
func TestUnansweredConnections(t *testing.T) {
	s := onStage(t)

	t.Run("clients that connect before the Service exists, issues 48719 and 101607", func(t *testing.T) {
		s.earlyConnections(t)
	})

	t.Run("an endpoint that does not answer and is replaced", func(t *testing.T) {
		s.connectionToDeadEndpoint(t)
	})
}

// opening is a TCP connection that may still be unanswered.
type opening struct {
	what string
	done chan opened
}

type opened struct {
	at  time.Time
	err error
}

// begin starts to connect. The client retransmits its SYN after 1, 3, 7 and 15 seconds.
func begin(from *cluster.Host, at, server string) *opening {
	o := &opening{what: from.Name + " -> " + at, done: make(chan opened, 1)}
	go func() {
		c, err := from.Dial(cluster.TCP, at, cluster.Within(patience))
		if err == nil {
			c.Close()
			if c.Server != server {
				err = fmt.Errorf("answered by %s, want %s", c.Server, server)
			}
		}
		o.done <- opened{time.Now(), err}
	}()
	return o
}

func (o *opening) mustSucceed(t *testing.T, from time.Time) {
	t.Helper()
	select {
	case got := <-o.done:
		if got.err != nil {
			t.Errorf("%s: %v", o.what, got.err)
		}
		t.Logf("%s: open after %v", o.what, got.at.Sub(from).Round(10*time.Millisecond))
	case <-time.After(2 * soon): // an emulated machine may miss all SYNs except the one after 31 s
		t.Errorf("%s: still connecting", o.what)
	}
}

// deadEnd makes a node send packets for an address to node-2, which silently drops them.
func (s *stage) deadEnd(t *testing.T, at *cluster.Node, to string) {
	t.Helper()
	addr := netip.MustParseAddrPort(to).Addr()
	// In user space, a Service's address is a route of its own.
	prefix, gateway := netip.PrefixFrom(addr, addr.BitLen()-1).Masked().String(), s.node2.V4
	if addr.Is6() {
		gateway = s.node2.V6
	}
	family := map[bool]string{true: "-6", false: "-4"}[addr.Is6()]
	at.MustRun(t, "ip", family, "route", "add", prefix, "via", gateway.String())
	s.node2.MustRun(t, "ip", family, "route", "add", "blackhole", prefix)
	t.Cleanup(func() {
		at.MustRun(t, "ip", family, "route", "del", prefix, "via", gateway.String())
		s.node2.MustRun(t, "ip", family, "route", "del", "blackhole", prefix)
	})
}

func (s *stage) earlyConnections(t *testing.T) {
	if !cluster.Userspace() {
		s.restartAgent(t, s.node3, "--masquerade-pod-egress")
	}
	earlier := s.service(t, `
metadata: {name: tcp-earlier}
---
endpoints: [{addresses: [web-1]}]`)
	svc := s.define(`
metadata: {name: tcp-early}
spec: {type: LoadBalancer}
---
endpoints: [{addresses: [web-2]}]`)
	var waiting []*opening
	for _, f := range s.FamilyList() {
		s.deadEnd(t, s.node3, svc.At(f, http))
		s.deadEnd(t, s.node1, svc.AtBalancer(f, http))
		waiting = append(waiting,
			begin(s.farClient.Host, svc.At(f, http), "web-2"),
			begin(s.node3.Host, svc.At(f, http), "web-2"),
			begin(s.outside, svc.AtBalancer(f, http), "web-2"))
	}
	time.Sleep(500 * time.Millisecond) // until the clients have sent their first packets
	t.Cleanup(func() { s.remove(t, svc.YAML()) })
	s.apply(t, svc.SlicesYAML())                                   // created before the Service, because a Service without endpoints refuses connections
	s.change(t, earlier.With("endpoints: [{addresses: [web-2]}]")) // a node that has synced this change has also processed these slices
	from := time.Now()
	s.change(t, svc)
	for _, o := range waiting {
		o.mustSucceed(t, from)
	}
}

func (s *stage) connectionToDeadEndpoint(t *testing.T) {
	dead := s.node2.Pod(t, "dead")
	t.Cleanup(func() { _ = dead.Delete() })
	for _, iptables := range []string{"iptables", "ip6tables"} {
		dead.MustRun(t, iptables, "-w", "-A", "INPUT", "-p", "tcp", "-j", "DROP")
	}
	svc := s.service(t, `
metadata: {name: tcp-dead}
---
endpoints: [{addresses: [dead]}]`)
	var waiting []*opening
	for _, f := range s.FamilyList() {
		waiting = append(waiting, begin(s.farClient.Host, svc.At(f, http), "web-1"), begin(s.node3.Host, svc.At(f, http), "web-1"))
	}
	time.Sleep(500 * time.Millisecond)
	from := time.Now()
	s.apply(t, svc.With("endpoints: [{addresses: [web-1]}]").SlicesYAML())
	for _, o := range waiting {
		o.mustSucceed(t, from)
	}
}
