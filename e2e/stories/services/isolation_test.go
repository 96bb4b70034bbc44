package services

import (
	"fmt"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

func TestIsolation(t *testing.T) {
	s := onStage(t)

	t.Run("an endpoint that the kernel of one node refuses", func(t *testing.T) {
		s.refusedEndpoint(t)
	})
}

// refusedEndpoint gives a Service an endpoint that IPVS refuses: an anycast address in one node's local routing
// table. The node must stay healthy and serve other Services.
func (s *stage) refusedEndpoint(t *testing.T) {
	cluster.NeedIPVS(t, "only IPVS looks at the route of an endpoint")
	const nowhere, route = "203.0.113.77", "203.0.113.77/32"
	s.node3.MustRun(t, "ip", "route", "add", "anycast", route, "dev", "lo", "table", "local")
	t.Cleanup(func() { _, _ = s.node3.Run("ip", "route", "del", "anycast", route, "dev", "lo", "table", "local") })
	s.restartAgent(t, s.node3, "--ipvs-sync-period", "2s")
	other := s.service(t, `
metadata: {name: beside-refused}
spec: {type: NodePort}
---
endpoints: [{addresses: [web-1]}]`)
	svc := s.define(`
metadata: {name: refused}
spec: {type: NodePort}
---
endpoints: [{addresses: [` + nowhere + `]}]`)
	s.apply(t, svc.YAML())
	t.Cleanup(func() { s.remove(t, svc.YAML()) })
	s.agents[s.node3].AwaitLog(t, patience, nowhere)
	s.awaitEvent(t, svc, nowhere, "the kernel refuses it")
	// /healthz fails 30 s after the last successful sync.
	for begin := time.Now(); time.Since(begin) < 35*time.Second; {
		for _, pod := range []string{"web-2", "web-1"} {
			s.change(t, other.With(fmt.Sprintf("endpoints: [{addresses: [%s]}]", pod)))
			reach(t, s.outside, http, other.AtNode(s.node3, cluster.V4), pod, s.node3.Addr(cluster.V4))
		}
		time.Sleep(2 * time.Second)
	}
	for _, path := range []string{"/healthz", "/livez", "/readyz"} {
		page, err := s.outside.HTTPGet("http://"+s.node3.At(cluster.V4, 10256)+path, slowly)
		if err != nil || page.Status != 200 {
			t.Errorf("%s: %+v, %v", path, page, err)
		}
	}
	s.node3.MustRun(t, "ip", "route", "del", "anycast", route, "dev", "lo", "table", "local")
	awaitDestinations(t, s.node3, http, svc.AtNode(s.node3, cluster.V4), nowhere+":8080")
}
