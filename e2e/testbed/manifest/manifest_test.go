package manifest

import (
	"slices"
	"strings"
	"testing"
)

var v4, v6 = families[0], families[1]

const web = `
metadata: {name: web}
spec: {type: LoadBalancer, externalIPs: [198.51.100.7, "2001:db8::7"]}
---
endpoints: [{addresses: [10.244.1.2]}, {addresses: [10.244.1.3], conditions: {ready: false}}]
`

func TestService(t *testing.T) {
	m := &Maker{Ports: "ports: [{name: http, port: 80, targetPort: 8080}]"}
	m.Service("metadata: {name: first}")
	svc := m.Service(web)
	http := svc.Ports()[0]
	if http != (Port{Protocol: "TCP", Number: 80, Target: 8080}) {
		t.Errorf("port %+v", http)
	}
	for what, test := range map[string]struct{ got, want string }{
		"ClusterIP":     {svc.At(v4, http), "10.96.1.2:80"},
		"IPv6":          {svc.At(v6, http), "[fd00:10:96::102]:80"},
		"external IP":   {svc.AtExternal(v6, http), "[2001:db8::7]:80"},
		"load balancer": {svc.AtBalancer(v4, http), "203.0.113.2:80"},
		"destinations":  {strings.Join(svc.Destinations(v4, http), " "), "10.244.1.2:8080"},
	} {
		if test.got != test.want {
			t.Errorf("%s: %s, want %s", what, test.got, test.want)
		}
	}
	if svc.NodePort() != 30002 {
		t.Errorf("node port %d", svc.NodePort())
	}
	if text := svc.YAML(); strings.Count(text, "kind: EndpointSlice") != 2 || strings.Count(text, "kind: Service\n") != 1 {
		t.Errorf("want a Service and one EndpointSlice per family:\n%s", text)
	}
}

func TestChange(t *testing.T) {
	m := &Maker{Ports: "ports: [{name: http, port: 80, targetPort: 8080}]"}
	before := m.Service(web)
	after := before.With("spec: {externalIPs: null, type: ClusterIP}\n---\nendpoints: [{addresses: [10.244.1.3]}]")
	if len(after.Spec.ExternalIPs) != 0 || len(after.Balancer()) != 0 || after.Spec.Ports[0].NodePort != 0 {
		t.Errorf("still has external addresses:\n%s", after.YAML())
	}
	if got := after.Destinations(v4, after.Ports()[0]); !slices.Equal(got, []string{"10.244.1.3:8080"}) {
		t.Errorf("destinations %v", got)
	}
	if len(before.Spec.ExternalIPs) != 2 || before.Destinations(v4, before.Ports()[0])[0] != "10.244.1.2:8080" {
		t.Errorf("the original changed:\n%s", before.YAML())
	}
}
