package drain

import (
	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Stopped tracks the destinations whose wanted weight is 0. Operators set this weight by annotation to drain an
// endpoint before they remove it. An endpoint is drained when it has no connections left through this node.
type Stopped struct {
	drained map[kernel.ServerDestination]struct{}
	count   int
}

// Update records a full read of the kernel. It returns the destinations drained since the previous read.
func (s *Stopped) Update(w *diff.Target, have *kernel.State) []kernel.ServerDestination {
	before := s.drained
	s.drained, s.count = map[kernel.ServerDestination]struct{}{}, 0
	var drained []kernel.ServerDestination
	for key, server := range w.Stopped {
		for _, wanted := range server.Destinations {
			if wanted.Weight > 0 {
				continue
			}
			observed, exists := have.Servers[key].Destination(wanted.Addr)
			if !exists || observed.Weight > 0 {
				continue
			}
			if s.count++; observed.Stats.Connections() > 0 {
				continue
			}
			entry := kernel.ServerDestination{Server: key, Destination: kernel.Destination{Addr: wanted.Addr}}
			s.drained[entry] = struct{}{}
			if _, reported := before[entry]; !reported {
				drained = append(drained, entry)
			}
		}
	}
	return drained
}

// Count returns the number of destinations with a wanted weight of 0.
func (s *Stopped) Count() int { return s.count }

// Drained returns how many of these destinations have no connections left.
func (s *Stopped) Drained() int { return len(s.drained) }
