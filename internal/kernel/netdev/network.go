package netdev

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// Network lists the gateways of this node's routes, the first and broadcast addresses of its subnets, and its nameservers. On error, it
// returns none.
func (b *Backend) Network(ctx context.Context) (kernel.Network, error) {
	device, err := b.ourIndex()
	if err != nil {
		return nil, fmt.Errorf("list this node's networks: %w", err)
	}
	return b.network(ctx, device)
}

func (b *Backend) network(ctx context.Context, device int) (kernel.Network, error) {
	network := kernel.Network{}
	gateways, err := b.addRoutes(ctx, network)
	if err != nil {
		return nil, fmt.Errorf("list this node's routes: %w", err)
	}
	if err := b.addSubnets(ctx, device, network); err != nil {
		return nil, fmt.Errorf("list this node's networks: %w", err)
	}
	b.known.readGateways(gateways)
	addNameservers(network, b.resolverFiles)
	return network, nil
}

// addRoutes adds the broadcast addresses and gateways from the routes in all tables, except link-local gateways, which Services cannot use.
// Before Linux 5.14, the kernel treats the first address of each subnet as a broadcast address, too. If a route refers to a next hop object
// without naming its gateway, addRoutes adds the gateways of all objects.
func (b *Backend) addRoutes(ctx context.Context, network kernel.Network) (gateways map[netip.Addr]struct{}, err error) {
	gateways = map[netip.Addr]struct{}{}
	objects := false // a route refers to a next hop object
	add := func(hops []netip.Addr) {
		for _, hop := range hops {
			gateways[hop] = struct{}{}
			network[hop] = kernel.NetworkRole{Kind: kernel.Gateway}
		}
	}
	see := func(payload []byte) error { // a node may have more routes than fit in memory
		hops, err := parseGateways(payload)
		if err != nil {
			return err
		}
		add(hops)
		objects = objects || len(hops) == 0 && refersToObject(payload)
		if addr, is := broadcastOf(payload); is {
			network[addr] = kernel.NetworkRole{Kind: kernel.Broadcast, Subnet: netip.PrefixFrom(addr, addr.BitLen())}
		}
		return nil
	}
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		if err := b.walk(ctx, nlbatch.Request{Type: unix.RTM_GETROUTE, Payload: routeHeader(family)}, see); err != nil {
			return nil, err
		}
	}
	if objects {
		err = b.walk(ctx, nlbatch.Request{Type: unix.RTM_GETNEXTHOP, Payload: make([]byte, sizeofNexthop)}, func(payload []byte) error {
			hops, err := parseNexthop(payload)
			add(hops)
			return err
		})
	}
	return gateways, err
}

// From include/uapi/linux/nexthop.h and rtnetlink.h.
const (
	sizeofNexthop = 8
	rtaNexthop    = 30
	nhaGateway    = 6
)

// refersToObject reports whether a unicast route names a next hop object. With the sysctl net.ipv4.nexthop_compat_mode=0, the message then does
// not contain the gateway.
func refersToObject(b []byte) (refers bool) {
	if b[routeType] != unix.RTN_UNICAST {
		return false
	}
	_ = nlbatch.EachAttr(b[unix.SizeofRtMsg:], func(typ uint16, _ []byte) error {
		refers = refers || typ == rtaNexthop
		return nil
	})
	return refers
}

// parseNexthop returns the gateway of a next hop object, if any.
func parseNexthop(b []byte) (hops []netip.Addr, err error) {
	if len(b) < sizeofNexthop {
		return nil, fmt.Errorf("read next hop: message of %d bytes", len(b))
	}
	err = nlbatch.EachAttr(b[sizeofNexthop:], func(typ uint16, v []byte) error {
		if typ == nhaGateway {
			hops = appendHop(hops, unix.RTA_GATEWAY, v)
		}
		return nil
	})
	return hops, err
}

// addSubnets adds the first and last addresses of the interfaces' networks, and broadcast addresses that differ from the last address.
func (b *Backend) addSubnets(ctx context.Context, device int, network kernel.Network) error {
	found, err := b.addressesExcept(ctx, device, address.ofNode)
	for _, a := range found {
		addSubnet(network, a)
	}
	return err
}

// addSubnet adds the reserved addresses of the network that an interface address is in.
func addSubnet(network kernel.Network, a address) {
	p := netip.PrefixFrom(a.addr, int(a.prefix))
	network.AddSubnet(p)
	if a.addr.Is4() && a.addr.BitLen()-p.Bits() >= 2 && a.broadcast.IsValid() {
		network[a.broadcast] = kernel.NetworkRole{Kind: kernel.Broadcast, Subnet: p.Masked()}
	}
}

func routeHeader(family uint8) []byte {
	b := make([]byte, unix.SizeofRtMsg)
	b[0] = family
	return b
}

// parseGateways returns the next hops in the payload of an RTM_NEWROUTE. It returns none if the route is not unicast.
func parseGateways(b []byte) ([]netip.Addr, error) {
	if len(b) < unix.SizeofRtMsg {
		return nil, fmt.Errorf("read route: message of %d bytes", len(b))
	}
	if b[routeType] != unix.RTN_UNICAST {
		return nil, nil // without an allocation: each address of kube-ipvs0 has a local route
	}
	return hopsOf(b)
}

func hopsOf(b []byte) (hops []netip.Addr, err error) {
	err = nlbatch.EachAttr(b[unix.SizeofRtMsg:], func(typ uint16, v []byte) error {
		switch typ {
		case unix.RTA_GATEWAY, unix.RTA_VIA:
			hops = appendHop(hops, typ, v)
		case unix.RTA_MULTIPATH:
			return eachNextHop(v, func(typ uint16, v []byte) { hops = appendHop(hops, typ, v) })
		}
		return nil
	})
	return hops, err
}

func broadcastOf(b []byte) (netip.Addr, bool) {
	if b[routeType] != unix.RTN_BROADCAST {
		return netip.Addr{}, false
	}
	return destinationOf(b)
}

func destinationOf(b []byte) (addr netip.Addr, is bool) {
	_ = nlbatch.EachAttr(b[unix.SizeofRtMsg:], func(typ uint16, v []byte) error {
		if typ == unix.RTA_DST {
			addr, is = netip.AddrFromSlice(v)
		}
		return nil
	})
	return addr, is && !addr.IsLoopback()
}

// routeType is the offset of the type in a route header.
const routeType = 7

func eachNextHop(b []byte, handle func(typ uint16, v []byte)) error {
	for len(b) >= unix.SizeofRtNexthop {
		length, err := nlbatch.Uint16(b)
		if err != nil {
			return err
		}
		if length < unix.SizeofRtNexthop || int(length) > len(b) {
			return fmt.Errorf("read route: next hop is %d bytes long, but only %d are left", length, len(b))
		}
		err = nlbatch.EachAttr(b[unix.SizeofRtNexthop:length], func(typ uint16, v []byte) error {
			handle(typ, v)
			return nil
		})
		if err != nil {
			return err
		}
		b = b[min((int(length)+3)&^3, len(b)):]
	}
	return nil
}

// appendHop appends the address in an RTA_GATEWAY or an RTA_VIA. An RTA_VIA starts with the address family.
func appendHop(hops []netip.Addr, typ uint16, v []byte) []netip.Addr {
	switch {
	case typ == unix.RTA_VIA && len(v) > 2:
		v = v[2:]
	case typ != unix.RTA_GATEWAY:
		return hops
	}
	hop, ok := netip.AddrFromSlice(v)
	if !ok || hop.IsLinkLocalUnicast() || hop.IsUnspecified() {
		return hops
	}
	return append(hops, hop)
}

// dump sends a dump request, and repeats it if an object changed in the meantime.
func (b *Backend) dump(ctx context.Context, req nlbatch.Request) (payloads [][]byte, err error) {
	err = uninterrupted(func() (err error) {
		payloads, err = b.addrs.Dump(ctx, req)
		return err
	})
	return payloads, err
}

// walk is like dump, but the list can have any length. If the walk is repeated, it visits objects again.
func (b *Backend) walk(ctx context.Context, req nlbatch.Request, visit func([]byte) error) error {
	return uninterrupted(func() error { return b.addrs.Walk(ctx, req, visit) })
}

func uninterrupted(read func() error) (err error) {
	for range dumpAttempts {
		if err = read(); !errors.Is(err, nlbatch.ErrDumpInterrupted) {
			break
		}
	}
	return err
}
