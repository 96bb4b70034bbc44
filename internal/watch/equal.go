package watch

import (
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// Equality decides what counts as a change. Most updates of a Service touch only its status or annotations, and a relist
// repeats everything: neither must cost the agent a compile. TestEqualSeesEveryField fails when model gains a field that is
// missing here.

func equalService(a, b *model.Service) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.ID == b.ID && a.UID == b.UID && a.Created.Equal(b.Created) && a.AffinityTimeout == b.AffinityTimeout &&
		slices.Equal(a.ClusterIPs, b.ClusterIPs) && slices.Equal(a.Ports, b.Ports) && slices.Equal(a.Slices, b.Slices)
}

func equalSlice(a, b *model.EndpointSlice) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Name == b.Name && a.Family == b.Family && slices.Equal(a.Ports, b.Ports) && slices.Equal(a.Endpoints, b.Endpoints)
}
