package agent

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

const (
	// holdInherited is how long an agent that starts keeps everything because its first list lacks most virtual servers.
	holdInherited = 30 * time.Second
	// fewInherited is a number of missing ClusterIPs that is never implausible.
	fewInherited = 16
)

// inherited is what an earlier agent left in the kernel, compared with the first list from the API server. If the list lacks most of it,
// the agent cannot distinguish Services that were deleted while no agent ran from an API server that has lost its storage, or hides
// objects, or belongs to another cluster. So it changes nothing at first (I15).
type inherited struct {
	// until is when the agent goes by the list; zero before the first comparison.
	until time.Time
	// accepted is true once a list was plausible, or the time has passed.
	accepted bool
}

// checkInherited returns an error while the plan of the first sync removes most virtual servers.
func (s *syncRun) checkInherited(plan diff.Plan) error {
	h := &s.inherited
	if h.accepted || !s.reads || s.cfg.CompleteSource {
		return nil
	}
	if h.until.IsZero() {
		h.until = s.now.Add(holdInherited)
	}
	removed, left := s.countInherited(plan)
	if removed <= fewInherited || 2*removed <= left || !s.now.Before(h.until) {
		h.accepted = true
		return nil
	}
	s.known.Forget()
	return fmt.Errorf("the API server's first list lacks the Services of %d of the %d ClusterIPs that an earlier agent left; "+
		"the agent changes nothing until the list has them, or for %s. If you did not delete these Services, check whether the API server "+
		"has lost data, and whether the agent uses the right API server and may list all Services", removed, left, holdInherited)
}

// countInherited counts the ClusterIPs that an earlier agent left, and those of which the plan removes a virtual server. Each Service has one
// in a family, and its author can give it thousands of other addresses. If none is known, all addresses count.
func (s *syncRun) countInherited(plan diff.Plan) (removed, left int) {
	inherited := map[netip.Addr]bool{}
	for _, set := range s.cluster.Want().Base.ClusterIPs {
		for e := range s.known.State().Members[set] {
			inherited[e.Addr] = false
		}
	}
	if len(inherited) == 0 {
		for key := range s.known.Servers() {
			inherited[key.Addr.Addr()] = false
		}
	}
	left = len(inherited)
	for _, op := range plan.Ops() {
		if server, ok := op.Object.(kernel.Server); ok && op.Verb == kernel.Delete {
			if counted, is := inherited[server.Key.Addr.Addr()]; is && !counted {
				inherited[server.Key.Addr.Addr()] = true
				removed++
			}
		}
	}
	return removed, left
}
