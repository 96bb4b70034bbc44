package kubeproxy

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// firstInstant connects to the node's daemon at the address of a new Service. On a fast machine, the port may close
// between two requests, so the test makes several attempts.
func firstInstant(t *testing.T, w *world) (ours, theirs string) {
	t.Helper()
	leaked := map[*side]bool{}
	for attempt := range 4 {
		svc := w.maker.Service(fmt.Sprintf(`
metadata: {name: instant-%d}
spec: {type: LoadBalancer, allocateLoadBalancerNodePorts: false}
---
endpoints: [{addresses: [web]}]`, attempt))
		stop := make(chan struct{})
		var asking sync.WaitGroup
		var mu sync.Mutex
		for _, s := range w.sides() {
			asking.Go(func() {
				if asksUntil(stop, s, svc.AtBalancer(cluster.V4, daemon)) {
					mu.Lock()
					defer mu.Unlock()
					leaked[s] = true
				}
			})
		}
		w.apply(t, svc.YAML())
		w.settle(t)
		close(stop)
		asking.Wait()
		if leaked[w.theirs] {
			break
		}
	}
	return w.both(func(s *side) string {
		if leaked[s] {
			return "the daemon answers there until the rules are in place"
		}
		return "the daemon never answers there"
	})
}

func asksUntil(stop <-chan struct{}, s *side, at string) (answered bool) {
	for {
		select {
		case <-stop:
			return answered
		default:
		}
		if r := s.pod.Probe(cluster.TCP, at, cluster.Within(time.Second)); r.Outcome == cluster.Answered {
			answered = true
		}
	}
}

// A busy emulated machine loses about one datagram in a thousand even without changes.
func rangeOfOneAddress(t *testing.T, w *world) (ours, theirs string) {
	t.Helper()
	svc := w.services["ranges"]
	flows := map[*side]*cluster.Flows{}
	for _, s := range w.sides() {
		flows[s] = s.outside.OpenFlows(t, 20, cluster.UDP, svc.AtBalancer(cluster.V4, dns), cluster.FlowConfig{Within: time.Second, Max: patience})
	}
	const many = 12
	for range 20 {
		w.settle(t)
		if flows[w.theirs].Report().Lost >= many {
			break
		}
	}
	return w.both(func(s *side) string {
		report := flows[s].Stop()
		t.Logf("%s: %s", s.name, report)
		if report.Lost >= many {
			return "requests are lost"
		}
		return "no request is lost"
	})
}

// foreignAt is the address of a foreign virtual server.
const foreignAt = "10.50.0.1:80"

func (s *side) addForeignServer(t *testing.T) {
	t.Helper()
	s.node.MustRun(t, "ipvsadm", "-A", "-t", foreignAt, "-s", "wrr")
}

func (s *side) hasForeignServer() (bool, error) {
	servers, err := s.node.VirtualServers()
	_, found := servers[cluster.VirtualKey(cluster.TCP, foreignAt)]
	return found, err
}

func foreignServer(t *testing.T, w *world) (ours, theirs string) {
	t.Helper()
	for _, s := range w.sides() {
		s.addForeignServer(t)
	}
	w.settle(t)
	return w.both(func(s *side) string {
		switch found, err := s.hasForeignServer(); {
		case err != nil:
			return err.Error()
		case found:
			return "it stays"
		}
		return "it is deleted"
	})
}

// zeroEndpoints keeps the removed endpoint's pod running, to count the datagrams that still arrive there.
func zeroEndpoints(t *testing.T, w *world) (ours, theirs string) {
	t.Helper()
	svc := w.services["logs"]
	var senders []*cluster.Sender
	sources := map[*side][]netip.Addr{}
	for _, s := range w.sides() {
		senders = append(senders,
			s.pod.StartSender(t, svc.At(cluster.V4, logs), 50*time.Millisecond),
			s.pod.StartSender(t, svc.At(cluster.V6, logs), 50*time.Millisecond),
			s.outside.StartSender(t, s.node.At(cluster.V4, logsNodePort), 50*time.Millisecond))
		sources[s] = []netip.Addr{s.pod.V4, s.pod.V6, s.node.V4}
	}
	cluster.Eventually(t, patience, "datagrams of all senders", func() error {
		for _, from := range slices.Concat(slices.Collect(maps.Values(sources))...) {
			if w.collector.Sources()[from] == 0 {
				return fmt.Errorf("none from %s", from)
			}
		}
		return nil
	})
	w.apply(t, svc.With("endpoints: []").SlicesYAML())
	w.settle(t)
	before := w.collector.Sources()
	time.Sleep(3 * time.Second) // wait for datagrams of remaining flows
	after := w.collector.Sources()
	for _, s := range senders {
		s.Stop()
	}
	return w.both(func(s *side) string {
		for _, from := range sources[s] {
			if after[from] > before[from] {
				return fmt.Sprintf("the removed endpoint receives more datagrams from %s", from)
			}
		}
		return "the removed endpoint gets nothing more"
	})
}

// drainWithMH keeps a connection to a terminating endpoint open, so that its destination stays in IPVS with weight
// 0. mh hashes the port, so the new connections use many source ports.
func drainWithMH(t *testing.T, w *world) (ours, theirs string) {
	t.Helper()
	svc := w.services["hash"]
	held := map[*side]*cluster.Conn{}
	for _, s := range w.sides() {
		for range 40 {
			if c := s.pod.Open(t, cluster.TCP, svc.At(cluster.V4, http), slowly); c.Server == w.other.Name {
				held[s] = c
				break
			}
		}
		if held[s] == nil {
			t.Fatalf("%s: none of 40 connections reached %s", s.name, w.other.Name)
		}
	}
	w.apply(t, svc.With("endpoints: [{addresses: [web]}]").SlicesYAML())
	w.settle(t)
	ours, theirs = w.both(func(s *side) string {
		refused := 0
		for range 30 {
			switch r := s.pod.Probe(cluster.TCP, svc.At(cluster.V4, http), slowly); r.Outcome {
			case cluster.Answered:
			case cluster.Refused:
				refused++
			default:
				return r.String()
			}
		}
		if refused > 0 {
			return "some refused"
		}
		return "all answered"
	})
	for _, s := range w.sides() {
		held[s].MustPing(t)
	}
	return ours, theirs
}

// The client is not masqueraded. Otherwise, the node would answer segments outside the window with resets under
// both programs (docs/known-limits.md).
func outsideTheWindow(t *testing.T, w *world) (ours, theirs string) {
	t.Helper()
	svc := w.services["plain"]
	return w.inEachFamily(func(s *side, f cluster.Family) string {
		c, err := s.pod.Dial(cluster.TCP, svc.At(f, http), slowly)
		if err != nil {
			return err.Error()
		}
		defer c.Close()
		seen, err := c.Ping()
		if err != nil {
			return err.Error()
		}
		before, err := s.resets()
		if err == nil {
			err = w.web.SendStrayTCP(seen.Dest, seen.From(), 20)
		}
		if err != nil {
			return err.Error()
		}
		if _, err := c.Ping(); err != nil {
			return fmt.Sprintf("the connection ends: %v", err)
		}
		if after, err := s.resets(); err != nil || after != before {
			return fmt.Sprintf("%d resets are sent (%v)", after-before, err)
		}
		return "the connection continues, no reset is sent"
	})
}

// contested waits until each Service has received the address once.
func contested(t *testing.T, w *world) (ours, theirs string) {
	t.Helper()
	older, younger := w.web.Name, w.other.Name
	had := map[*side]map[string]bool{w.ours: {}, w.theirs: {}}
	for range 12 {
		for _, s := range w.sides() {
			for _, f := range w.FamilyList() {
				r := s.pod.Probe(cluster.TCP, w.services["z-older"].AtExternal(f, http), slowly)
				had[s][r.Reply.Server] = true
			}
		}
		if had[w.theirs][older] && had[w.theirs][younger] {
			break
		}
		w.settle(t)
	}
	return w.both(func(s *side) string {
		switch {
		case had[s][older] && had[s][younger]:
			return "it alternates between them"
		case had[s][older] && len(had[s]) == 1:
			return "the older one gets it"
		}
		return fmt.Sprintf("answered by %q", slices.Collect(maps.Keys(had[s])))
	})
}

// earlySender sends before the Service's status contains the load balancer's address, so that the kernel tracks the flow
// without a virtual server.
func earlySender(t *testing.T, w *world) (ours, theirs string) {
	t.Helper()
	svc := w.services["early"].With("status: null")
	for _, s := range w.sides() {
		sender := s.outside.StartSender(t, svc.AtBalancer(cluster.V4, dns), 200*time.Millisecond)
		defer sender.Stop()
		cluster.Eventually(t, patience, s.node.Name+" tracks the datagrams", func() error {
			flow := fmt.Sprintf("sport=%d ", sender.Local.Port())
			if tracked := s.node.MustRun(t, "cat", "/proc/net/nf_conntrack"); !strings.Contains(tracked, flow) {
				return fmt.Errorf("no %s in\n%s", flow, tracked)
			}
			return nil
		})
	}
	w.apply(t, svc.ServiceYAML())
	w.settle(t)
	before := w.datagrams.Sources()
	time.Sleep(3 * time.Second)
	after := w.datagrams.Sources()
	return w.both(func(s *side) string {
		switch node, client := s.node.V4, s.outside.V4; {
		case after[client] > before[client]:
			return "the endpoint sees the client, which rejects the replies"
		case after[node] > before[node]:
			return "the endpoint sees the node, and its replies return"
		}
		return "the endpoint gets nothing"
	})
}

func (s *side) resets() (int, error) {
	total := 0
	for _, h := range []*cluster.Host{s.pod.Host, s.node.Host} {
		counters, err := h.Run("grep", "^Tcp:", "/proc/net/snmp")
		if err != nil {
			return 0, err
		}
		names, values, _ := strings.Cut(counters, "\n")
		n, err := strconv.Atoi(strings.Fields(values)[slices.Index(strings.Fields(names), "OutRsts")])
		if err != nil {
			return 0, err
		}
		total += n
	}
	return total, nil
}
