package services

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

func (s *stage) badEndpoint(t *testing.T) {
	svc := s.service(t, `
metadata: {name: bad}
---
endpoints: [{addresses: [web-1]}]`)
	// The API server cannot recognize broadcast addresses of the nodes' networks. IPVS rejects them as destinations.
	for _, addr := range []string{"255.255.255.255", "192.168.50.255"} {
		bad := svc.With("endpoints: [{addresses: [" + addr + "]}]").MoreSlicesYAML("-more")
		s.apply(t, bad)
		s.agents[s.node1].AwaitLog(t, patience, addr)
		s.awaitService(t, svc)
		s.client.Get(t, cluster.TCP, svc.At(cluster.V4, http), slowly)
		s.remove(t, bad)
	}
}

// virtualEndpoint gives a Service another Service's ClusterIP as its endpoint. If the agent served it, connections
// would reach a process on the node that listens on that port.
func (s *stage) virtualEndpoint(t *testing.T) {
	other := s.service(t, `
metadata: {name: bound}
---
endpoints: [{addresses: [web-2]}]`)
	svc := s.service(t, `
metadata: {name: leads-to-bound}
---
endpoints: [{addresses: [web-1]}]`)
	s.node1.Serve(t, http.Protocol, http.Target)
	bad := svc.With(fmt.Sprintf("endpoints: [{addresses: [%q]}, {addresses: [%q]}]", other.Spec.ClusterIPs[0], other.Spec.ClusterIPs[1])).
		MoreSlicesYAML("-more")
	s.apply(t, bad)
	t.Cleanup(func() { s.remove(t, bad) })
	for i, f := range s.FamilyList() {
		name := fmt.Sprintf("leads-to-bound-more-v%d", f)
		s.agents[s.node1].AwaitLog(t, patience, name)
		s.awaitService(t, svc)
		for _, from := range []*cluster.Host{s.client.Host, s.node1.Host} {
			if counts := from.Spread(t, 10, http.Protocol, svc.At(f, http), slowly); counts["web-1"] != 10 {
				t.Errorf("%s from %s: want every answer from the pod, got %v", f, from.Name, counts)
			}
		}
		s.awaitEvent(t, svc, name+" endpoints.addresses", other.Spec.ClusterIPs[i])
	}
}

func (s *stage) awaitEvent(t *testing.T, svc service, words ...string) {
	t.Helper()
	client, err := kubernetes.NewForConfig(s.api.Client())
	if err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(t, patience, fmt.Sprintf("an Event of Service %s says %q", svc.Name, words), func() error {
		events, err := client.EventsV1().Events("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		var notes []string
		for _, e := range events.Items {
			if e.Regarding.Name != svc.Name || e.Type != corev1.EventTypeWarning {
				continue
			}
			if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(e.Note, w) }) {
				return nil
			}
			notes = append(notes, e.Note)
		}
		return fmt.Errorf("no such Event; the Events are %q", notes)
	})
}
