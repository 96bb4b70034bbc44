package netdev

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Network lists addresses that this node's networks need, each with what it is: the node's gateways and the
// broadcast addresses. Bound to kube-ipvs0 they would become local, and the node would lose them.
func (b *Backend) Network(ctx context.Context) (map[netip.Addr]string, error) {
	network := map[netip.Addr]string{}
	if err := b.addBroadcasts(ctx, network); err != nil {
		return nil, fmt.Errorf("list the broadcast addresses of this node's networks: %w", err)
	}
	routes, err := b.routes()
	if err != nil {
		return nil, fmt.Errorf("list this node's routes: %w", err)
	}
	for _, route := range routes {
		if route.Dst != nil && !route.Dst.IP.IsUnspecified() {
			continue
		}
		addGateway(network, route.Gw)
		for _, hop := range route.MultiPath {
			addGateway(network, hop.Gw)
		}
	}
	return network, nil
}

// routes lists the routes of the main table, and retries if a route or an interface changed during the dump: it is called once, while
// the node's pods may be starting.
func (b *Backend) routes() ([]netlink.Route, error) {
	for attempt := 1; ; attempt++ {
		routes, err := b.links.RouteList(nil, netlink.FAMILY_ALL)
		if attempt == dumpAttempts || !errors.Is(err, netlink.ErrDumpInterrupted) {
			return routes, err
		}
	}
}

func addGateway(network map[netip.Addr]string, ip []byte) {
	if addr, ok := netip.AddrFromSlice(ip); ok {
		network[addr.Unmap()] = "this node's gateway"
	}
}

// addBroadcasts adds the broadcast addresses; IPv6 has none.
func (b *Backend) addBroadcasts(ctx context.Context, network map[netip.Addr]string) error {
	index, err := b.ourIndex()
	if err != nil {
		return err
	}
	payloads, err := b.dumpAddresses(ctx, unix.AF_INET)
	if err != nil {
		return err
	}
	for _, payload := range payloads {
		a, err := parseAddress(payload)
		if err != nil {
			return err
		}
		if last, is := broadcast(a); is && a.index != index && a.ofNode() {
			network[last] = fmt.Sprintf("the broadcast address of this node's network %s", netip.PrefixFrom(a.addr, int(a.prefix)).Masked())
		}
	}
	return nil
}

// broadcast is the last address of an interface's network. One of two addresses or less has none.
func broadcast(a address) (last netip.Addr, is bool) {
	if !a.addr.Is4() || a.prefix > 30 {
		return netip.Addr{}, false
	}
	b := a.addr.As4()
	for bit := a.prefix; bit < 32; bit++ {
		b[bit/8] |= 1 << (7 - bit%8)
	}
	return netip.AddrFrom4(b), true
}
