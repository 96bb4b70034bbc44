package services

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

func TestDrain(t *testing.T) {
	s := onStage(t)

	t.Run("connections to removed endpoints continue", func(t *testing.T) { s.drainedConnections(t) })

	t.Run("clients that reuse a port while its endpoint drains", func(t *testing.T) { s.reusedPorts(t) })
}

// leaving is a Service with only one endpoint.
type leaving struct {
	service
	pod *cluster.Pod
}

func (s *stage) leaving(t *testing.T, name string) leaving {
	t.Helper()
	pod := s.node2.Pod(t, name)
	t.Cleanup(func() { _ = pod.Delete() })
	pod.Serve(t, cluster.TCP, http.Target)
	return leaving{s.service(t, fmt.Sprintf(`
metadata: {name: %s}
spec: {ports: [{name: http, port: 80, targetPort: 8080}]}
---
endpoints: [{addresses: [%s]}]`, name, name)), pod}
}

// drainedConnections removes the endpoints of Services. Each destination is removed after its last connection.
func (s *stage) drainedConnections(t *testing.T) {
	removals, each := cluster.Size(2, 50), cluster.Size(5, 20)
	var services []leaving
	var flows []*cluster.Flows
	for i := range removals {
		svc := s.leaving(t, fmt.Sprint("drains-", i))
		services = append(services, svc)
		flows = append(flows, s.farClient.OpenFlows(t, each, cluster.TCP, svc.At(cluster.V4, http),
			cluster.FlowConfig{Every: 5 * time.Second, Within: patience, Max: time.Hour}))
	}
	has := func(svc leaving) bool {
		servers, err := s.node3.VirtualServers()
		if err != nil {
			t.Fatal(err)
		}
		_, found := servers[cluster.VirtualKey(cluster.TCP, svc.At(cluster.V4, http))].Weights[netip.AddrPortFrom(svc.pod.V4, http.Target)]
		return found
	}
	for _, svc := range services {
		s.change(t, svc.With("endpoints: [{addresses: [web-1]}]"))
	}
	for i, svc := range services {
		flows[i].AwaitRound(t, patience)
		reach(t, s.farClient.Host, http, svc.At(cluster.V4, http), "web-1", s.farClient.V4)
		if !has(svc) && cluster.Mode().IPVSBalances() { // the others do not count connections, and remove the endpoint immediately
			t.Errorf("%s: the destination was removed before its connections ended", svc.Name)
		}
	}
	for _, f := range flows {
		f.MustBeUnharmed(t)
	}
	closed := time.Now()
	for remaining := services; len(remaining) > 0; remaining = slices.DeleteFunc(remaining, func(svc leaving) bool { return !has(svc) }) {
		if time.Since(closed) > 2*patience { // IPVS remembers a closed connection for two minutes
			t.Fatalf("%d destinations still exist", len(remaining))
		}
		time.Sleep(time.Second)
	}
	t.Attr("figure", fmt.Sprintf("%d connections, %d removals: no connection lost; the last destination was removed %v after all connections were closed",
		removals*each, removals, time.Since(closed).Round(time.Second)))
}

// reusedPorts connects from the same ports before and after an endpoint is removed. The kernel still remembers the
// closed connections, and an open connection keeps the destination.
func (s *stage) reusedPorts(t *testing.T) {
	const first = 20_000
	ports := cluster.Size(20, 1000)
	s.farClient.MustRun(t, "sh", "-c", "echo 1 >/proc/sys/net/ipv4/tcp_tw_reuse") // otherwise this client could not reuse a port for a minute
	svc := s.leaving(t, "reused")
	connect := func(i int, server string) time.Duration {
		t.Helper()
		began := time.Now()
		got := s.farClient.Get(t, cluster.TCP, svc.At(cluster.V4, http), cluster.FromPort(first+uint16(i)), slowly)
		if got.Server != server {
			t.Fatalf("port %d: answered by %s, want %s", first+i, got.Server, server)
		}
		return time.Since(began)
	}
	time.Sleep(2 * time.Second) // the kernel reuses no port that was closed in the first second after it booted
	for i := range ports {
		connect(i, svc.pod.Name)
	}
	held := s.farClient.Open(t, cluster.TCP, svc.At(cluster.V4, http), slowly)
	s.change(t, svc.With("endpoints: [{addresses: [web-1]}]"))
	time.Sleep(2 * time.Second) // a client may reuse a port after a second
	longest := time.Duration(0)
	for i := range ports {
		longest = max(longest, connect(i, "web-1"))
	}
	held.MustPing(t)
	t.Attr("figure", fmt.Sprintf("%d reused ports, none reached the removed endpoint; the slowest connection and its answer took %v", ports, longest.Round(time.Millisecond)))
}
