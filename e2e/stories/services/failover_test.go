package services

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// TestUDPFailover stops the only server of a UDP Service and replaces the endpoint at the same time. It measures how
// long each client gets no answer.
func TestUDPFailover(t *testing.T) {
	const clients = 10
	s := onStage(t)
	times := cluster.Size(2, 100)
	var pods []*cluster.Pod
	for i, node := range []*cluster.Node{s.node1, s.node2} {
		pod := node.Pod(t, fmt.Sprint("failover-", i))
		t.Cleanup(func() { _ = pod.Delete() })
		pods = append(pods, pod)
	}
	svc := s.service(t, `
metadata: {name: udp-failover}
spec: {ports: [{name: dns, protocol: UDP, port: 80, targetPort: 5353}]}
---
endpoints: [{addresses: [failover-0]}]`)
	serving := pods[0].Serve(t, cluster.UDP, dns.Target)
	var silences []time.Duration
	for i := range times {
		var flows []*cluster.Flows
		s.farClient.Await(t, patience, cluster.UDP, svc.At(cluster.V4, dns))
		for range clients {
			flows = append(flows, s.farClient.OpenFlows(t, 1, cluster.UDP, svc.At(cluster.V4, dns),
				cluster.FlowConfig{Every: 10 * time.Millisecond, Within: 10 * time.Millisecond}))
		}
		next := pods[(i+1)%2]
		stops := serving
		serving = next.Serve(t, cluster.UDP, dns.Target)
		for _, f := range flows {
			f.AwaitRound(t, patience)
		}
		stops.Close()
		s.apply(t, svc.With("endpoints: [{addresses: ["+next.Name+"]}]").SlicesYAML())
		for _, f := range flows {
			cluster.Eventually(t, soon, next.Name+" answers", func() error {
				if f.Report().Moved == 0 {
					return fmt.Errorf("not yet")
				}
				return nil
			})
			silences = append(silences, f.Stop().LongestSilence)
		}
	}
	slices.Sort(silences)
	at := func(percent int) time.Duration {
		return silences[(len(silences)-1)*percent/100].Round(time.Millisecond)
	}
	t.Attr("figure", fmt.Sprintf("%d clients: silence %v (median), %v (99th percentile), %v (longest)", len(silences), at(50), at(99), at(100)))
}
