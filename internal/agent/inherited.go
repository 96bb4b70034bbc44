package agent

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

const (
	// holdInherited is how long a new agent leaves the kernel unchanged if the first lists lack most virtual servers
	// or their endpoints.
	holdInherited = 30 * time.Second
	// fewInherited is how many ClusterIPs may be missing before the agent doubts the lists.
	fewInherited = 16
)

func (p *planner) checkInherited(s *syncRun, plan diff.Plan) error {
	h := &p.inherited
	if h.accepted || !s.reads || p.cfg.CompleteSource {
		return nil
	}
	if h.until.IsZero() {
		h.until = s.now.Add(holdInherited)
	}
	lost, left := p.countInherited(plan)
	if lost <= fewInherited || 2*lost <= left || !s.now.Before(h.until) {
		h.accepted = true
		return nil
	}
	p.known.Forget()
	return fmt.Errorf("the API server's first lists lack the Services or all endpoints of %d of the %d ClusterIPs that an earlier agent left; "+
		"the agent waits until the lists contain them, but at most %s, before it changes anything. If you did not delete them, check whether the API server "+
		"has lost data, and whether the agent uses the right API server and is allowed to list all Services and EndpointSlices", lost, left, holdInherited)
}

// countInherited counts the ClusterIPs that an earlier agent left in the kernel, and those whose virtual server or
// endpoints the plan removes. It counts ClusterIPs because each Service has one per family, but can have thousands of
// other addresses. If no ClusterIP is known, it counts all addresses.
func (p *planner) countInherited(plan diff.Plan) (lost, left int) {
	inherited := map[netip.Addr]bool{}
	for _, set := range p.target.Base().ClusterIPs {
		for e := range p.known.State().Members[set] {
			inherited[e.Addr] = false
		}
	}
	if len(inherited) == 0 {
		for key := range p.known.Servers() {
			inherited[key.Addr.Addr()] = false
		}
	}
	left = len(inherited)
	for key := range p.lostServers(plan) {
		if counted, is := inherited[key.Addr.Addr()]; is && !counted {
			inherited[key.Addr.Addr()] = true
			lost++
		}
	}
	return lost, left
}

func (p *planner) lostServers(plan diff.Plan) map[kernel.ServerKey]struct{} {
	lost := map[kernel.ServerKey]struct{}{}
	for op := range plan.All {
		switch o := op.Object.(type) {
		case kernel.Server:
			if op.Verb == kernel.Delete {
				lost[o.Key] = struct{}{}
			}
		case kernel.ServerDestination:
			if op.Verb != kernel.Create && p.losesEndpoints(o.Server) {
				lost[o.Server] = struct{}{}
			}
		}
	}
	return lost
}

func (p *planner) losesEndpoints(key kernel.ServerKey) bool {
	wanted := p.target.Server(key)
	return slices.ContainsFunc(p.known.State().Servers[key].Destinations, func(d kernel.ObservedDestination) bool { return d.Weight > 0 }) &&
		!(wanted != nil && slices.ContainsFunc(wanted.Destinations, func(d kernel.Destination) bool { return d.Weight > 0 }))
}
