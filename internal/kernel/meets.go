package kernel

import (
	"net/netip"
	"slices"
)

// Meets returns the virtual server that new connections to a port meet: the one of that port, or else the one for all ports of the
// address, as it is for that port.
func Meets(servers map[ServerKey]ObservedServer, port ServerKey) (ObservedServer, bool) {
	if server, stands := servers[port]; stands {
		return server, true
	}
	wide, stands := servers[port.AllPorts()]
	return wide.For(port.Addr.Port()), stands
}

// For is a virtual server as packets to a port meet it: one for all ports leaves them as they are.
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
