package doctor

import (
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Sample selects the virtual servers to which doctor traces packets if no agent responds.
type Sample struct {
	// Choice lists connections that are always in the sample.
	Choice
	keys []kernel.ServerKey
}

const ofEachFamily = 4

// Take reports whether the sample includes a virtual server. Call it once for each virtual server.
func (s *Sample) Take(key kernel.ServerKey) bool {
	family := 0
	for _, k := range s.keys {
		if k.Family() == key.Family() {
			family++
		}
	}
	if s.includes(key) {
		return true
	}
	if family == ofEachFamily || key.Protocol != inet.TCP || key.Addr.Port() == 0 {
		return false
	}
	s.keys = append(s.keys, key)
	return true
}

// Paths returns the paths from this node to the sample's virtual servers, and the paths of the chosen connections. It skips virtual servers that
// have no endpoint for new connections.
func (s *Sample) Paths(k *explain.Kernel) (all []Path) {
	add := func(q explain.Question) {
		if sender := s.sender(q); !among(all, q) && slices.ContainsFunc(k.Servers[q.To].Destinations, kernel.ObservedDestination.TakesConnections) {
			all = append(all, Path{Question: q, Service: "the virtual server", Sender: sender, Open: sender == fromNode && q.To.Protocol == inet.TCP})
		}
	}
	for _, key := range s.keys {
		add(explain.Question{To: key, From: key.Addr.Addr()})
	}
	for _, q := range s.Connections {
		add(q)
	}
	return all
}
