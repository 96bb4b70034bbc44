package services

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/controlplane"
)

func TestFamilies(t *testing.T) {
	controlplane.NeedReal(t)
	s := onStage(t)

	t.Run("the families of a Service, in either order", func(t *testing.T) {
		// proves: 87, 88, 89, 90
		for _, c := range []struct{ name, families string }{
			{"v4", "[IPv4]"}, {"v6", "[IPv6]"}, {"v4-v6", "[IPv4, IPv6]"}, {"v6-v4", "[IPv6, IPv4]"},
		} {
			t.Run(c.name, func(t *testing.T) { s.ofFamilies(t, c.name, c.families) })
		}
	})

	t.Run("the API server chooses the families", func(t *testing.T) {
		// proves: 86
		s.chosenFamilies(t)
	})

	t.Run("a second Service range", func(t *testing.T) {
		// proves: 137
		s.secondRange(t)
	})

	t.Run("a new Service is served soon", func(t *testing.T) {
		// proves: 138
		var took []time.Duration
		for i := range 10 {
			svc := s.define(fmt.Sprintf(`
metadata: {name: latency-%d}
---
endpoints: [{addresses: [web-2]}]`, i))
			began := time.Now()
			s.create(t, svc)
			s.farClient.Await(t, patience, cluster.TCP, svc.At(cluster.V4, http))
			took = append(took, time.Since(began).Round(time.Millisecond))
		}
		slices.Sort(took)
		t.Logf("time until a Service is served, including the requests to the API server: %v", took)
		// These are upstream's limits for the 90th and 99th percentiles.
		if took[8] > 20*time.Second || took[9] > 50*time.Second {
			t.Errorf("want nine Services within 20 s and the last within 50 s: %v", took)
		}
	})
}

func (s *stage) ofFamilies(t *testing.T, name, families string) {
	svc := s.service(t, fmt.Sprintf(`
metadata: {name: families-%s}
spec: {type: NodePort, ipFamilies: %s}
---
endpoints: [{addresses: [web-2]}]`, name, families))
	for _, f := range s.FamilyList() {
		if !strings.Contains(families, f.String()) {
			s.outside.MustRefuse(t, cluster.TCP, svc.AtNode(s.node3, f), slowly)
			continue
		}
		reach(t, s.client.Host, http, svc.At(f, http), "web-2", s.client.Addr(f))
		reach(t, s.outside, http, svc.AtNode(s.node3, f), "web-2", s.node3.Addr(f))
	}
}

func (s *stage) secondRange(t *testing.T) {
	more := `
apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: second}
spec: {cidrs: [10.97.0.0/24, "fd00:10:97::/120"]}
`
	s.apply(t, more)
	svc := s.define(`
metadata: {name: second-range}
spec: {clusterIPs: [10.97.0.7, "fd00:10:97::7"]}
---
endpoints: [{addresses: [web-2]}]`)
	t.Cleanup(func() { s.remove(t, svc.YAML()); s.remove(t, more) })
	cluster.Eventually(t, patience, "the API server allocates from the second range", func() error {
		return s.api.Apply(t.Context(), svc.YAML())
	})
	for _, f := range s.FamilyList() {
		reach(t, s.client.Host, http, svc.At(f, http), "web-2", s.client.Addr(f))
		reach(t, s.node3.Host, http, svc.At(f, http), "web-2", s.node3.Addr(f))
	}
}

func (s *stage) chosenFamilies(t *testing.T) {
	chosen := `
apiVersion: v1
kind: Service
metadata: {name: chosen}
spec: {ports: [{name: http, port: 80}]}
`
	t.Cleanup(func() { s.remove(t, chosen) })
	s.apply(t, chosen)
	client, err := kubernetes.NewForConfig(s.api.Client())
	if err != nil {
		t.Fatal(err)
	}
	made, err := client.CoreV1().Services("default").Get(t.Context(), "chosen", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	svc := s.define(fmt.Sprintf(`
metadata: {name: chosen}
spec: {clusterIPs: [%q], ports: [{name: http, port: 80, targetPort: 8080}]}
---
endpoints: [{addresses: [web-2]}]`, made.Spec.ClusterIPs[0]))
	t.Cleanup(func() { s.remove(t, svc.SlicesYAML()) })
	s.apply(t, svc.SlicesYAML())
	reach(t, s.client.Host, http, svc.At(cluster.V4, http), "web-2", s.client.V4)
}
