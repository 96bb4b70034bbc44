package watch

import (
	"reflect"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// These functions define what counts as a change. Most updates of a Service touch only its status or annotations, most updates
// of a Node are heartbeats, and a relist repeats every object. None of these updates may trigger a compilation.
// TestEqualSeesEveryField fails if the model gains a field that is missing here.

func equalService(a, b *model.Service) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.ID == b.ID && a.UID == b.UID && a.Created.Equal(b.Created) && equalAddresses(a, b) &&
		a.InternalLocal == b.InternalLocal && a.ExternalLocal == b.ExternalLocal && a.HealthCheckPort == b.HealthCheckPort &&
		a.AffinityTimeout == b.AffinityTimeout && a.Held == b.Held && slices.Equal(a.Ports, b.Ports) &&
		reflect.DeepEqual(a.Balancing, b.Balancing) && slices.Equal(a.Slices, b.Slices)
}

func equalAddresses(a, b *model.Service) bool {
	return slices.Equal(a.ClusterIPs, b.ClusterIPs) && slices.Equal(a.ExternalIPs, b.ExternalIPs) &&
		slices.Equal(a.LoadBalancerIPs, b.LoadBalancerIPs) && slices.Equal(a.SourceRanges, b.SourceRanges)
}

func equalSlice(a, b *model.EndpointSlice) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Name == b.Name && a.Family == b.Family && slices.Equal(a.Ports, b.Ports) &&
		slices.EqualFunc(a.Endpoints, b.Endpoints, equalEndpoint)
}

func equalEndpoint(a, b model.Endpoint) bool {
	return a.Addr == b.Addr && a.Ready == b.Ready && a.Serving == b.Serving && a.Terminating == b.Terminating &&
		a.Node == b.Node && a.Zone == b.Zone && a.Pod == b.Pod && a.Hints.Equal(b.Hints)
}

func equalNode(a, b *model.Node) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Name == b.Name && slices.Equal(a.Addresses, b.Addresses) && slices.Equal(a.PodCIDRs, b.PodCIDRs) &&
		a.Zone == b.Zone && a.Leaving == b.Leaving && a.Weight == b.Weight && a.WeightSet == b.WeightSet
}
