package netdev

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// If a lookup returns one of the errors in refusals, the kernel drops the packets. An IPv6 lookup returns a route of a type in refusalTypes
// instead.
var refusals = []unix.Errno{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EINVAL, unix.EXDEV}

var refusalTypes = map[int]string{
	unix.RTN_BLACKHOLE: "a blackhole route", unix.RTN_UNREACHABLE: "no route, or an unreachable route", unix.RTN_PROHIBIT: "a prohibit route",
	unix.RTN_THROW: "no route",
}

// RouteTo looks up the route of packets that this node sends. Packets from the address arrive on the same interface, unless routing is
// asymmetric.
func (b *Backend) RouteTo(to netip.Addr, mark uint32) (kernel.Route, error) {
	return b.route(to, &netlink.RouteGetOptions{Mark: mark})
}

// RouteOf looks up the route of packets that arrive on an interface, with the mark that rules have set.
func (b *Backend) RouteOf(to, from netip.Addr, arriving string, mark uint32) (kernel.Route, error) {
	return b.route(to, &netlink.RouteGetOptions{SrcAddr: from.AsSlice(), Iif: arriving, Mark: mark})
}

// maxMarkRules limits the number of rules that MarkRules returns.
const maxMarkRules = 16

// MarkRules returns the routing rules for marks, without duplicates.
func (b *Backend) MarkRules() ([]kernel.MarkRule, error) {
	rules, err := b.links.RuleList(netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list the routing rules: %w", err)
	}
	var marks []kernel.MarkRule
	for _, r := range rules {
		m := kernel.MarkRule{Mark: r.Mark, Mask: ^uint32(0)}
		if r.Mask != nil {
			m.Mask = *r.Mask
		}
		if m.Mark != 0 && !slices.Contains(marks, m) && len(marks) < maxMarkRules {
			marks = append(marks, m)
		}
	}
	return marks, nil
}

func (b *Backend) route(to netip.Addr, of *netlink.RouteGetOptions) (kernel.Route, error) {
	routes, err := b.links.RouteGetWithOptions(to.AsSlice(), of)
	for _, refusal := range refusals {
		if errors.Is(err, refusal) {
			return kernel.Route{Failure: refusal.Error()}, nil
		}
	}
	if err == nil && len(routes) == 0 {
		err = errors.New("no answer")
	}
	if err != nil {
		return kernel.Route{}, fmt.Errorf("look up the route to %s: %w", to, err)
	}
	found := routes[0]
	if why, refused := refusalTypes[found.Type]; refused {
		return kernel.Route{Failure: why}, nil
	}
	link, err := b.links.LinkByIndex(found.LinkIndex)
	if err != nil {
		return kernel.Route{}, fmt.Errorf("look up the route to %s: interface %d: %w", to, found.LinkIndex, err)
	}
	route := kernel.Route{Interface: link.Attrs().Name, Local: found.Type == unix.RTN_LOCAL}
	gateway := found.Gw
	if via, ok := found.Via.(*netlink.Via); ok {
		gateway = via.Addr
	}
	if addr, ok := netip.AddrFromSlice(gateway); ok {
		route.Gateway = addr.Unmap()
	}
	if addr, ok := netip.AddrFromSlice(found.Src); ok {
		route.Source = addr.Unmap()
	}
	return route, nil
}

// LocalRoutes returns the addresses that are local according to the kernel's local table.
func (b *Backend) LocalRoutes(ctx context.Context) (map[netip.Addr]bool, error) {
	local := map[netip.Addr]bool{}
	see := func(payload []byte) error {
		r, err := parseListedRoute(payload)
		if err == nil && r.toHost() && r.local && r.table == unix.RT_TABLE_LOCAL {
			local[r.to] = true
		}
		return err
	}
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		if err := b.walk(ctx, nlbatch.Request{Type: unix.RTM_GETROUTE, Payload: routeHeader(family)}, see); err != nil {
			return nil, fmt.Errorf("list the local routes: %w", err)
		}
	}
	return local, nil
}

// listedRoute is a route as the kernel lists it. to is the zero address for a default route.
type listedRoute struct {
	to             netip.Addr
	bits           int
	table          uint32
	local, unicast bool
	protocol       uint8
	index          int // of the interface
}

// toHost reports whether the route leads to a single address.
func (r listedRoute) toHost() bool { return r.to.IsValid() && r.bits == r.to.BitLen() }

const (
	routeBits     = 1 // the offset of the prefix length in a route header
	routeTable    = 4
	routeProtocol = 5
	routeScope    = 6
)

func parseListedRoute(b []byte) (r listedRoute, err error) {
	if len(b) < unix.SizeofRtMsg {
		return r, fmt.Errorf("read route: message of %d bytes", len(b))
	}
	r.bits, r.table, r.protocol = int(b[routeBits]), uint32(b[routeTable]), b[routeProtocol]
	r.local, r.unicast = b[routeType] == unix.RTN_LOCAL, b[routeType] == unix.RTN_UNICAST
	err = nlbatch.EachAttr(b[unix.SizeofRtMsg:], func(typ uint16, v []byte) (err error) {
		switch typ {
		case unix.RTA_DST:
			r.to, _ = netip.AddrFromSlice(v)
		case unix.RTA_TABLE:
			r.table, err = nlbatch.Uint32(v)
		case unix.RTA_OIF:
			var index uint32
			index, err = nlbatch.Uint32(v)
			r.index = int(index)
		}
		return err
	})
	return r, err
}
