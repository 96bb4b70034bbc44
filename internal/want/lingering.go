package want

import (
	"iter"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// SetLingering sets which of the checked virtual servers linger. No Service wants them, but they keep their connections alongside the Service's
// new virtual server: the Service has changed which ports share an affinity, and the kernel cannot change a virtual server's port. They are
// wanted like all others until their last connection ends.
func (s *State) SetLingering(checked iter.Seq[kernel.ServerKey], now map[kernel.ServerKey]*Server, touched *Touched) {
	for key := range checked {
		s.dismiss(key, touched)
	}
	for key, server := range now {
		if s.foreign[key] != nil {
			continue
		}
		s.add(server, touched)
		s.lingering[key] = struct{}{}
	}
}

// Lingers reports whether a wanted virtual server lingers.
func (s *State) Lingers(key kernel.ServerKey) bool {
	_, lingers := s.lingering[key]
	return lingers
}

// Lingering iterates over the keys of the lingering virtual servers, in no order.
func (s *State) Lingering(yield func(kernel.ServerKey) bool) {
	for key := range s.lingering {
		if !yield(key) {
			return
		}
	}
}

// dismiss removes the virtual server with the key if it lingers.
func (s *State) dismiss(key kernel.ServerKey, touched *Touched) {
	if s.Lingers(key) {
		delete(s.lingering, key)
		s.remove(s.Servers[key], touched)
	}
}
