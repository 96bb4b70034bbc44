package lastknown

import (
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// RemoteChanges returns the state as changes. It omits endpoints that were not ready. It also omits endpoints on this
// node, because after a reboot their addresses may belong to other pods.
func (s *State) RemoteChanges(node string) model.Changes {
	changes := model.Changes{
		Services: make(map[model.ServiceID]*model.Service, len(s.Services)), Nodes: make(map[string]*model.Node, len(s.Nodes)),
		APIServer: s.Contacts,
	}
	var own []netip.Prefix
	for _, n := range s.Nodes {
		changes.Nodes[n.Name] = n
		if n.Name == node {
			own = n.PodCIDRs
		}
	}
	for _, svc := range s.Services {
		remote := *svc
		remote.Slices = nil
		for _, slice := range svc.Slices {
			less := *slice
			less.Endpoints = slices.DeleteFunc(slices.Clone(slice.Endpoints), func(e model.Endpoint) bool {
				return e.Node == node || !e.Ready || slices.ContainsFunc(own, func(p netip.Prefix) bool { return p.Contains(e.Addr) })
			})
			remote.Slices = append(remote.Slices, &less)
		}
		changes.Services[svc.ID] = &remote
	}
	return changes
}
