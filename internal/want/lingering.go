package want

import "github.com/kube-ipvs/kube-ipvs/internal/kernel"

// SetLingering puts these virtual servers in place of those that lingered before. No Service asks for them any more, but they keep
// the connections they have, and the Service's new virtual server stands beside them: what the affinity of a Service spans has
// changed, and the kernel cannot give a virtual server another port. They are wanted like all others until they have done their work.
func (s *State) SetLingering(now map[kernel.ServerKey]*Server, touched *Touched) {
	for key := range s.lingering {
		s.dismiss(key, touched)
	}
	for key, server := range now {
		if s.foreign[key] != nil { // somebody else's stands there
			continue
		}
		s.add(server, touched)
		s.lingering[key] = struct{}{}
	}
}

// Lingers says whether a wanted virtual server is one that only lingers.
func (s *State) Lingers(key kernel.ServerKey) bool {
	_, lingers := s.lingering[key]
	return lingers
}

// Lingering calls yield for the key of each of them, in no order.
func (s *State) Lingering(yield func(kernel.ServerKey) bool) {
	for key := range s.lingering {
		if !yield(key) {
			return
		}
	}
}

// dismiss forgets a lingering virtual server, if the key is that of one.
func (s *State) dismiss(key kernel.ServerKey, touched *Touched) {
	if s.Lingers(key) {
		delete(s.lingering, key)
		s.remove(s.Servers[key], touched)
	}
}
