package want

import "github.com/kube-ipvs/kube-ipvs/internal/kernel"

// Match returns the key of the wanted virtual server that new connections to a port match.
func (s *State) Match(port kernel.ServerKey) kernel.ServerKey {
	return kernel.MatchKey(port, func(key kernel.ServerKey) bool { return s.Serves(key, port) })
}

// Serves is true if a virtual server is wanted and serves the port.
func (s *State) Serves(key, port kernel.ServerKey) bool {
	server := s.Servers[key]
	return server != nil && server.Serves(port)
}
