package want

import (
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Match returns the key of the wanted virtual server that new connections to a port match.
func (s *State) Match(port kernel.ServerKey) kernel.ServerKey {
	return kernel.MatchKey(port, func(key kernel.ServerKey) bool { return s.Serves(key, port) })
}

// Serves reports whether a virtual server is wanted and serves the port.
func (s *State) Serves(key, port kernel.ServerKey) bool {
	server := s.Servers[key]
	return server != nil && server.Serves(port)
}

// Ports returns the ports whose new connections match an all-ports server.
func (s *State) Ports(key kernel.ServerKey) []uint16 {
	server := s.Servers[key]
	if server == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(server.Ports), func(number uint16) bool {
		port := kernel.ServerKey{Addr: netip.AddrPortFrom(key.Addr.Addr(), number), Protocol: key.Protocol}
		return s.Match(port) != key
	})
}
