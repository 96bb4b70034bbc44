package services

import (
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

func TestFamilies(t *testing.T) {
	s := onStage(t)

	t.Run("which families a Service has, in which order", func(t *testing.T) {
		// proves: 87, 88, 89, 90
		for _, c := range []struct {
			name     string
			families []cluster.Family
		}{
			{"v4", []cluster.Family{cluster.V4}},
			{"v6", []cluster.Family{cluster.V6}},
			{"v4-v6", []cluster.Family{cluster.V4, cluster.V6}},
			{"v6-v4", []cluster.Family{cluster.V6, cluster.V4}},
		} {
			t.Run(c.name, func(t *testing.T) {
				svc := s.defineNodePort("families-"+c.name, podEndpoint(s.otherNode))
				both := svc.ips
				svc.ips = nil
				for _, f := range c.families {
					svc.ips = append(svc.ips, both[map[cluster.Family]int{cluster.V4: 0, cluster.V6: 1}[f]])
				}
				s.create(t, svc)
				for _, f := range c.families {
					reach(t, s.client.Host, http, svc.at(f, http), "web-2", s.client.Addr(f))
					reach(t, s.outside, http, svc.atNode(s.node3, f), "web-2", s.node3.Addr(f))
				}
				if len(c.families) == 1 {
					other := cluster.V4 + cluster.V6 - c.families[0]
					s.outside.MustRefuse(t, cluster.TCP, svc.atNode(s.node3, other), slowly)
				}
			})
		}
	})

	t.Run("the API server chooses", func(t *testing.T) {
		// proves: 86
		object := `
apiVersion: v1
kind: Service
metadata: {name: chosen}
spec: {ports: [{name: http, port: 80}]}
---`
		t.Cleanup(func() { s.remove(t, object) })
		s.apply(t, object)
		client, err := kubernetes.NewForConfig(s.api.Client())
		if err != nil {
			t.Fatal(err)
		}
		made, err := client.CoreV1().Services("default").Get(t.Context(), "chosen", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		svc := service{name: "chosen", ips: made.Spec.ClusterIPs, ports: []port{http}, endpoints: []endpoint{podEndpoint(s.otherNode)}}
		t.Cleanup(func() { s.remove(t, svc.slices()) })
		s.apply(t, svc.slices())
		reach(t, s.client.Host, http, svc.at(cluster.V4, http), "web-2", s.client.V4)
	})

	t.Run("a second Service range", func(t *testing.T) {
		// proves: 137
		more := `
apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: second}
spec: {cidrs: [10.97.0.0/24, "fd00:10:97::/120"]}
---`
		s.apply(t, more)
		svc := s.define("second-range", podEndpoint(s.otherNode))
		svc.ips = []string{"10.97.0.7", "fd00:10:97::7"}
		t.Cleanup(func() { s.remove(t, svc.manifest()); s.remove(t, more) })
		cluster.Eventually(t, patience, "the API server allocates from the second range", func() error {
			return s.api.Apply(t.Context(), svc.manifest())
		})
		for _, f := range s.FamilyList() {
			reach(t, s.client.Host, http, svc.at(f, http), "web-2", s.client.Addr(f))
			reach(t, s.node3.Host, http, svc.at(f, http), "web-2", s.node3.Addr(f))
		}
	})

	t.Run("a new Service is served soon", func(t *testing.T) {
		// proves: 138
		var took []time.Duration
		for i := range 10 {
			svc := s.define(fmt.Sprintf("latency-%d", i), podEndpoint(s.otherNode))
			began := time.Now()
			s.create(t, svc)
			s.farClient.Await(t, patience, cluster.TCP, svc.at(cluster.V4, http))
			took = append(took, time.Since(began).Round(time.Millisecond))
		}
		slices.Sort(took)
		t.Logf("with the requests to the API server: %v", took)
		// Upstream's limits for nine tenths and for nearly all.
		if took[8] > 20*time.Second || took[9] > 50*time.Second {
			t.Errorf("want nine below 20 s and the last below 50 s: %v", took)
		}
	})
}
