package kernel

import (
	"net/netip"
	"slices"
)

// MatchKey returns the key of the virtual server that new connections to a port match: the port's own virtual server or, if there is none,
// the all-ports server of the address.
func MatchKey(port ServerKey, exists func(ServerKey) bool) ServerKey {
	if allPorts := port.AllPorts(); !exists(port) && exists(allPorts) {
		return allPorts
	}
	return port
}

// Match returns the virtual server that new connections to a port match.
func Match(servers map[ServerKey]ObservedServer, port ServerKey) (ObservedServer, bool) {
	key := MatchKey(port, func(key ServerKey) bool {
		_, exists := servers[key]
		return exists
	})
	server, exists := servers[key]
	return server.For(port.Addr.Port()), exists
}

// For returns the virtual server as packets to a port see it: the destinations of an all-ports server use the packet's port.
func (s ObservedServer) For(port uint16) ObservedServer {
	if s.Key != s.Key.AllPorts() {
		return s
	}
	s.Destinations = slices.Clone(s.Destinations)
	for i := range s.Destinations {
		d := &s.Destinations[i]
		d.Addr = netip.AddrPortFrom(d.Addr.Addr(), port)
	}
	return s
}
