package watch

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// A Node object can claim only a limited number of addresses from Services. The time to process it grows no faster than its size.
func TestAddressesOfANodeAreBounded(t *testing.T) {
	for n, want := range map[int]int{maxAddresses: maxAddresses, 50_000: maxAddresses} {
		node := &v1.Node{}
		for i := range n {
			address := v1.NodeAddress{Type: v1.NodeInternalIP, Address: fmt.Sprintf("11.%d.%d.%d", i>>16, i>>8&255, i&255)}
			node.Status.Addresses = append(node.Status.Addresses, address)
		}
		r := newConverter("").node(node, "")
		if len(r.Node.Addresses) != want || (len(r.Problems) > 0) != (n > want) {
			t.Errorf("a Node with %d addresses: %d are used, problems %v", n, len(r.Node.Addresses), r.Problems)
		}
	}
}

// Names that the API server does not validate stay in memory no longer than their object, and are valid in metric labels.
func TestNamesOfEndpoints(t *testing.T) {
	c := newConverter("")
	zone, bad := strings.Repeat("z", maxName+1), "pod-\xff"
	slice := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4}
	slice.Labels = map[string]string{discoveryv1.LabelServiceName: "web"}
	slice.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"10.244.0.1"}, Zone: &zone, NodeName: &bad, TargetRef: &v1.ObjectReference{Kind: "Pod", Name: bad}}}
	e := c.endpointSlice(slice, "").Slice.Endpoints[0]
	if _, kept := c.names.seen[zone]; kept || e.Zone != zone {
		t.Errorf("got zone %q, interned %t; a long zone must be kept unchanged and not interned", e.Zone, kept)
	}
	if !utf8.ValidString(e.Pod) || !utf8.ValidString(e.Node) {
		t.Errorf("pod %q or node %q is not valid UTF-8", e.Pod, e.Node)
	}
}
