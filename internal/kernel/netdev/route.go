package netdev

import (
	"fmt"
	"net/netip"
)

// InterfaceTo returns the interface through which this node reaches an address. Packets from that address arrive on the same interface,
// unless routing is asymmetric.
func (b *Backend) InterfaceTo(addr netip.Addr) (string, error) {
	routes, err := b.links.RouteGet(addr.AsSlice())
	if err != nil {
		return "", fmt.Errorf("look up the route to %s: %w", addr, err)
	}
	if len(routes) == 0 {
		return "", fmt.Errorf("look up the route to %s: no answer", addr)
	}
	link, err := b.links.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return "", fmt.Errorf("look up the route to %s: interface %d: %w", addr, routes[0].LinkIndex, err)
	}
	return link.Attrs().Name, nil
}
