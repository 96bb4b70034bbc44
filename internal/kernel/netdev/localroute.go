package netdev

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// The agent's local routes lead to kube-ipvs0, not to lo: Calico counts every local route as an address of the node, except those to
// kube-ipvs0. The kernel accepts an IPv6 route only to a device that is up, so only IPv4 has routes.
//
// A route has no source address: the kernel then sends from the route's destination, as with an address of kube-ipvs0.

// anchor is an address that kube-ipvs0 gets before its first local route, and keeps: when a device loses its last IPv4 address, the kernel
// silently removes all IPv4 routes to it. A loopback address is local anyway, and never counts as an address of the node.
var anchor = netip.AddrFrom4([4]byte{127, 0, 0, kernel.RouteProtocol})

func (b *Backend) addAnchor(ctx context.Context, index int) error {
	req := addressRequest(kernel.Create, anchor, index)
	req.Payload[addressScope] = unix.RT_SCOPE_HOST // never the source of the node's packets through an interface without addresses
	err := b.addrs.Do(ctx, []nlbatch.Request{req})[0]
	return explainAddress(kernel.Op{Verb: kernel.Create, Object: kernel.BoundAddress{Addr: anchor}}, kernel.Create, err)
}

func addsRoute(op kernel.Op) bool {
	return op.Verb == kernel.Create && op.Object.(kernel.BoundAddress).Binding == kernel.Routed
}

func localRouteRequest(verb kernel.Verb, addr netip.Addr, index int) nlbatch.Request {
	payload := localRouteHeader()
	payload[routeBits], payload[routeScope] = uint8(addr.BitLen()), unix.RT_SCOPE_HOST
	payload = nlbatch.AppendAttr(payload, unix.RTA_DST, addr.AsSlice())
	payload = nlbatch.AppendAttr(payload, unix.RTA_OIF, binary.NativeEndian.AppendUint32(nil, uint32(index)))
	if verb == kernel.Create {
		// Without NLM_F_EXCL, the route can exist beside the kernel's own route for an address of kube-ipvs0.
		return nlbatch.Request{Type: unix.RTM_NEWROUTE, Flags: unix.NLM_F_CREATE, Payload: payload}
	}
	return nlbatch.Request{Type: unix.RTM_DELROUTE, Payload: payload}
}

func localRouteHeader() []byte {
	b := routeHeader(unix.AF_INET)
	b[routeTable], b[routeProtocol], b[routeType] = unix.RT_TABLE_LOCAL, kernel.RouteProtocol, unix.RTN_LOCAL
	return b
}

// readLocalRoutes adds the addresses of the agent's routes to a device. The kernel sends only the agent's routes.
func (b *Backend) readLocalRoutes(ctx context.Context, index int, into map[netip.Addr]kernel.Binding) error {
	var found []netip.Addr
	err := uninterrupted(func() error {
		found = found[:0]
		return b.routes.Walk(ctx, nlbatch.Request{Type: unix.RTM_GETROUTE, Payload: localRouteHeader()}, func(payload []byte) error {
			r, err := parseListedRoute(payload)
			if err == nil && r.index == index && r.ours() {
				found = append(found, r.to)
			}
			return err
		})
	})
	if errors.Is(err, unix.ENOENT) { // the namespace has no such table yet
		return nil
	}
	for _, addr := range found {
		kernel.Bind(into, addr, kernel.Routed)
	}
	return err
}

// ours reports whether the route makes a virtual address local.
func (r listedRoute) ours() bool {
	return r.local && r.table == unix.RT_TABLE_LOCAL && r.protocol == kernel.RouteProtocol && r.toHost() && r.to.Is4()
}
