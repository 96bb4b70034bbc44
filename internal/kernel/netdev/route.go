package netdev

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
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
	return kernel.Route{Interface: link.Attrs().Name, Local: found.Type == unix.RTN_LOCAL}, nil
}

// LocalRoutes returns the addresses that are local according to the kernel's local table.
func (b *Backend) LocalRoutes() (map[netip.Addr]bool, error) {
	local := map[netip.Addr]bool{}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		routes, err := b.links.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE)
		if err != nil {
			return nil, fmt.Errorf("list the local routes: %w", err)
		}
		for _, r := range routes {
			if r.Dst == nil {
				continue
			}
			if addr, ok := netip.AddrFromSlice(r.Dst.IP); ok {
				local[addr.Unmap()] = true
			}
		}
	}
	return local, nil
}
