// Package manifest describes a story's Services in the YAML that a user would write:
//
//	metadata: {name: web}
//	spec: {type: LoadBalancer, externalTrafficPolicy: Local}
//	---
//	endpoints: [{addresses: [web-1]}, {addresses: [web-2], conditions: {ready: false}}]
//
// The first document is a Service, the second its EndpointSlices; either may be absent. A document with top-level
// endpoints or ports is an EndpointSlice. The name of a node, pod or client represents its addresses. The package
// adds what Kubernetes would add: ClusterIPs, node ports, the load balancer's addresses, and one EndpointSlice for
// each family.
package manifest

import (
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/yaml"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// Port is a port at which clients reach a Service.
type Port struct {
	Protocol cluster.Protocol
	Number   uint16
	Target   uint16
}

// Maker creates the Services of one cluster.
type Maker struct {
	Cluster *cluster.Cluster
	Ports   string // default ports of Services as YAML: "ports: ..."

	made int
}

// Service is a Service as the API server stores it, with its EndpointSlices. Methods panic on invalid YAML.
type Service struct {
	corev1.Service

	maker  *Maker
	number int // determines its addresses and node port
	user   corev1.Service
	slices map[cluster.Family]discoveryv1.EndpointSlice
}

// Service reads a new Service and gives it unique addresses.
func (m *Maker) Service(text string) Service {
	m.made++
	s := Service{maker: m, number: m.made, slices: map[cluster.Family]discoveryv1.EndpointSlice{cluster.V4: {}, cluster.V6: {}}}
	return s.With(text)
}

// With returns the Service after a JSON merge patch: lists are replaced, and null removes a field.
func (s Service) With(text string) Service {
	s.slices = maps.Clone(s.slices)
	for _, patch := range documents(text) {
		if isSlice(patch) {
			for f, slice := range s.slices {
				s.slices[f] = s.maker.resolve(patched(slice, patch), f)
			}
		} else {
			s.user = patched(s.user, patch)
		}
	}
	s.Service = s.complete()
	return s
}

func documents(text string) []map[string]any {
	var all []map[string]any
	for _, document := range strings.Split(text, "\n---\n") {
		var fields map[string]any
		if err := yaml.UnmarshalStrict([]byte(document), &fields); err != nil {
			panic(fmt.Sprintf("%v in\n%s", err, document))
		}
		if fields != nil {
			all = append(all, fields)
		}
	}
	return all
}

func isSlice(fields map[string]any) bool {
	return fields["endpoints"] != nil || fields["ports"] != nil || fields["kind"] == "EndpointSlice"
}

func patched[T any](object T, patch map[string]any) T {
	var fields map[string]any
	convert(object, &fields)
	merge(fields, patch)
	var after T
	convert(fields, &after)
	return after
}

func merge(into, patch map[string]any) {
	for name, value := range patch {
		fields, isObject := value.(map[string]any)
		before, wasObject := into[name].(map[string]any)
		switch {
		case value == nil:
			delete(into, name)
		case isObject && wasObject:
			merge(before, fields)
		default:
			into[name] = value
		}
	}
}

// convert copies a value to another type through YAML.
func convert(from, to any) {
	if err := yaml.UnmarshalStrict([]byte(marshal(from)), to); err != nil {
		panic(fmt.Sprintf("%v in\n%s", err, marshal(from)))
	}
}

func marshal(object any) string {
	text, err := yaml.Marshal(object)
	if err != nil {
		panic(err)
	}
	return string(text)
}
