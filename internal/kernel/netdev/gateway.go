package netdev

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
)

// Gateways lists the routers through which this node reaches the world.
func (b *Backend) Gateways() ([]netip.Addr, error) {
	routes, err := b.links.RouteList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list this node's routes: %w", err)
	}
	var gateways []netip.Addr
	add := func(ip []byte) {
		if addr, ok := netip.AddrFromSlice(ip); ok && !slices.Contains(gateways, addr.Unmap()) {
			gateways = append(gateways, addr.Unmap())
		}
	}
	for _, route := range routes {
		if route.Dst != nil && !route.Dst.IP.IsUnspecified() {
			continue
		}
		add(route.Gw)
		for _, hop := range route.MultiPath {
			add(hop.Gw)
		}
	}
	return gateways, nil
}
