package netdev

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// mostPods limits the addresses that Pods returns.
const mostPods = 64

// Pods lists addresses of pods on this node: the host routes to veth interfaces whose peers are in other network namespaces, and the neighbors
// on bridges that connect only such interfaces. If there are many, it returns a sample. An interface with a default route does not lead to a
// pod.
func (b *Backend) Pods(ctx context.Context) ([]kernel.Pod, error) {
	links, err := b.links.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list the interfaces of this node: %w", err)
	}
	devices, bridges := podDevices(links)
	all, uplinks, err := b.hostRoutes(ctx, devices)
	if err != nil {
		return nil, fmt.Errorf("list the routes to pods: %w", err)
	}
	all = slices.DeleteFunc(all, func(p kernel.Pod) bool { return uplinks[p.Interface] })
	for index, name := range bridges {
		neighbors, err := b.links.NeighList(index, netlink.FAMILY_ALL)
		if err != nil {
			return nil, fmt.Errorf("list the neighbors on %s: %w", name, err)
		}
		for _, n := range neighbors {
			if addr, ok := netip.AddrFromSlice(n.IP); ok && n.State&alive != 0 && !addr.Unmap().IsLinkLocalUnicast() && !addr.IsMulticast() && !uplinks[name] {
				all = append(all, kernel.Pod{Addr: addr.Unmap(), Interface: name})
			}
		}
	}
	slices.SortFunc(all, func(a, b kernel.Pod) int {
		return cmp.Or(cmp.Compare(a.Interface, b.Interface), a.Addr.Compare(b.Addr))
	})
	return sample(slices.Compact(all)), nil
}

// alive are the states of neighbors that have answered.
const alive = unix.NUD_REACHABLE | unix.NUD_STALE | unix.NUD_DELAY | unix.NUD_PROBE | unix.NUD_PERMANENT

func sample(all []kernel.Pod) []kernel.Pod {
	if len(all) <= mostPods {
		return all
	}
	some := make([]kernel.Pod, mostPods)
	for i := range some {
		some[i] = all[i*len(all)/mostPods]
	}
	return some
}

// podDevices returns the interfaces that may lead to one pod, and the bridges that connect only such interfaces, by index.
func podDevices(links []netlink.Link) (devices, bridges map[int]string) {
	devices, bridges = map[int]string{}, map[int]string{}
	ports, foreign := map[int]bool{}, map[int]bool{}
	for _, l := range links {
		a := l.Attrs()
		switch {
		case l.Type() == "veth" && a.NetNsID >= 0:
			devices[a.Index], ports[a.MasterIndex] = a.Name, true
		case l.Type() != "veth":
			foreign[a.MasterIndex] = true
		}
	}
	for _, l := range links {
		if a := l.Attrs(); l.Type() == "bridge" && ports[a.Index] && !foreign[a.Index] {
			bridges[a.Index] = a.Name
		}
	}
	return devices, bridges
}

// hostRoutes returns the main table's host routes through the devices, and the names of the interfaces with a default route.
func (b *Backend) hostRoutes(ctx context.Context, devices map[int]string) (routes []kernel.Pod, uplinks map[string]bool, err error) {
	uplinks = map[string]bool{}
	see := func(payload []byte) error { // a node may have more routes than fit in memory
		r, err := parseListedRoute(payload)
		name := devices[r.index]
		switch {
		case err != nil || name == "" || !r.unicast || r.table != unix.RT_TABLE_MAIN:
		case r.bits == 0:
			uplinks[name] = true
		case r.toHost() && !r.to.IsLinkLocalUnicast():
			routes = append(routes, kernel.Pod{Addr: r.to, Interface: name})
		}
		return err
	}
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		if err := b.walk(ctx, nlbatch.Request{Type: unix.RTM_GETROUTE, Payload: routeHeader(family)}, see); err != nil {
			return nil, nil, err
		}
	}
	return routes, uplinks, nil
}
