package doctor

import (
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Sample selects the virtual servers to which doctor traces packets if no agent responds.
type Sample struct {
	// Suspects are always in the sample.
	Suspects []kernel.ServerKey
	keys     []kernel.ServerKey
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
	if slices.Contains(s.Suspects, key) {
		return true
	}
	if family == ofEachFamily || key.Protocol != inet.TCP || key.Addr.Port() == 0 {
		return false
	}
	s.keys = append(s.keys, key)
	return true
}

// Paths returns the paths from this node to the virtual servers that have endpoints for new connections.
func (s *Sample) Paths(k *explain.Kernel) (all []Path) {
	for _, key := range append(s.keys, s.Suspects...) {
		if slices.ContainsFunc(k.Servers[key].Destinations, kernel.ObservedDestination.TakesConnections) {
			all = append(all, Path{
				Question: explain.Question{To: key, From: key.Addr.Addr()}, Service: "the virtual server", Sender: fromNode, Open: key.Protocol == inet.TCP,
			})
		}
	}
	return all
}
