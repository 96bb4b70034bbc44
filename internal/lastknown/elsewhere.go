package lastknown

import (
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// Elsewhere returns the state as changes, without the endpoints of this node: a reboot gives their addresses to other pods. It also leaves
// out endpoints that took no connections any more.
func (s *State) Elsewhere(node string) model.Changes {
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
		elsewhere := *svc
		elsewhere.Slices = nil
		for _, slice := range svc.Slices {
			less := *slice
			less.Endpoints = slices.DeleteFunc(slices.Clone(slice.Endpoints), func(e model.Endpoint) bool {
				return e.Node == node || !e.Ready || slices.ContainsFunc(own, func(p netip.Prefix) bool { return p.Contains(e.Addr) })
			})
			elsewhere.Slices = append(elsewhere.Slices, &less)
		}
		changes.Services[svc.ID] = &elsewhere
	}
	return changes
}
