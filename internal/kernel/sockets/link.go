package sockets

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// linkType is the type of kube-ipvs0 in user space. linkAlias marks it as the agent's.
const (
	linkType  = "veth"
	linkAlias = "kube-ipvs userspace"
)

// link is kube-ipvs0 on the node: a veth pair whose other end is in the namespace. The node routes each virtual address
// to it. It has no addresses, so the node answers at none of them.
type link struct {
	node      *netlink.Handle
	namespace *namespace
	index     atomic.Int64 // of the link that this process created last; 0 before that

	mu     sync.Mutex
	routed map[netip.Addr]struct{} // the addresses that this process has routed to it
}

// routes reports whether this process has routed an address to kube-ipvs0.
func (l *link) routes(to netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, is := l.routed[to]
	return is
}

func (l *link) setRouted(to netip.Addr, is bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if is {
		l.routed[to] = struct{}{}
	} else {
		delete(l.routed, to)
	}
}

// forgetRoutes is called before the device is deleted, because its routes go with it.
func (l *link) forgetRoutes() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.routed)
}

func openLink(n *namespace) (*link, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	return &link{node: h, namespace: n, routed: map[netip.Addr]struct{}{}}, nil
}

// find returns kube-ipvs0, or nil. ours is true if an agent created it in user space.
func find(h *netlink.Handle) (found netlink.Link, ours bool, err error) {
	found, err = h.LinkByName(kernel.Device)
	if notFound := (netlink.LinkNotFoundError{}); errors.As(err, &notFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("look up %s: %w", kernel.Device, err)
	}
	return found, found.Type() == linkType && found.Attrs().Alias == linkAlias, nil
}

// Occupied returns an error if kube-ipvs0 belongs to another data plane, or to another program.
func Occupied() error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	found, ours, err := find(h)
	if found == nil || ours {
		return err
	}
	return fmt.Errorf("%s exists with type %s: another data plane served this node, or kube-proxy does", kernel.Device, found.Type())
}

// Exists reports whether kube-ipvs0 belongs to an agent in user space. A killed agent leaves it until its last connection
// has ended.
func Exists() (exists bool, err error) {
	err = withLeftover(func(*netlink.Handle, netlink.Link) error { exists = true; return nil })
	return exists, err
}

// Remove deletes it. The kernel then removes its routes and the other end.
func Remove() error {
	return withLeftover(func(h *netlink.Handle, found netlink.Link) error { return remove(h, found) })
}

func withLeftover(do func(*netlink.Handle, netlink.Link) error) error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	found, ours, err := find(h)
	if err != nil || !ours {
		return err
	}
	return do(h, found)
}

func remove(h *netlink.Handle, found netlink.Link) error {
	if err := h.LinkDel(found); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete %s: %w", kernel.Device, err)
	}
	return nil
}

// current returns kube-ipvs0 if it leads to this process's namespace, or nil.
func (l *link) current() (netlink.Link, error) {
	found, ours, err := find(l.node)
	if err != nil || !ours || int64(found.Attrs().Index) != l.index.Load() || found.Attrs().Flags&net.FlagUp == 0 {
		return nil, err
	}
	return found, nil
}

// create replaces what an earlier process left.
func (l *link) create() error {
	found, ours, err := find(l.node)
	l.forgetRoutes()
	switch {
	case err != nil:
		return err
	case ours:
		if err := remove(l.node, found); err != nil {
			return err
		}
	case found != nil:
		return fmt.Errorf("create %s: an interface of type %s has this name; remove it with kube-ipvs cleanup --data-plane=auto", kernel.Device, found.Type())
	}
	if err := l.namespace.detach(); err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = kernel.Device
	made := &netlink.Veth{LinkAttrs: attrs, PeerName: innerLink, PeerNamespace: netlink.NsFd(l.namespace.file.Fd())}
	if err := l.node.LinkAdd(made); err != nil {
		return fmt.Errorf("create %s: %w", kernel.Device, explain(err))
	}
	if err := l.connect(); err != nil {
		return errors.Join(fmt.Errorf("create %s: %w", kernel.Device, err), l.node.LinkDel(made))
	}
	return nil
}

func (l *link) connect() error {
	outer, err := l.node.LinkByName(kernel.Device)
	if err != nil {
		return err
	}
	if err := errors.Join(l.node.LinkSetAlias(outer, linkAlias), l.node.LinkSetUp(outer), l.namespace.attach(outer.Attrs().HardwareAddr)); err != nil {
		return err
	}
	inner, err := l.namespace.inside.LinkByName(innerLink)
	if err != nil {
		return err
	}
	for _, f := range l.namespace.families {
		if err := addNeighbor(l.node, outer, gateways[f].namespace, inner.Attrs().HardwareAddr); err != nil {
			return err
		}
	}
	l.index.Store(int64(outer.Attrs().Index))
	return nil
}

func (l *link) delete() error {
	l.forgetRoutes()
	found, ours, err := find(l.node)
	if err != nil || !ours || int64(found.Attrs().Index) != l.index.Load() {
		return err
	}
	return remove(l.node, found)
}

// read reports whether kube-ipvs0 exists, and which addresses the node routes to it.
func (l *link) read() (exists bool, addrs map[netip.Addr]kernel.Binding, err error) {
	addrs = map[netip.Addr]kernel.Binding{}
	found, err := l.current()
	if found == nil {
		return false, addrs, err
	}
	ours := &netlink.Route{LinkIndex: found.Attrs().Index, Protocol: kernel.RouteProtocol}
	for _, f := range l.namespace.families {
		routes, err := l.node.RouteListFiltered(family(f), ours, netlink.RT_FILTER_OIF|netlink.RT_FILTER_PROTOCOL)
		if err != nil {
			return false, nil, fmt.Errorf("list the routes to %s: %w", kernel.Device, err)
		}
		for _, r := range routes {
			if r.Dst == nil {
				continue
			}
			if addr, ok := netip.AddrFromSlice(r.Dst.IP); ok {
				addrs[addr.Unmap()] = kernel.OnDevice
			}
		}
	}
	return true, addrs, nil
}

func (l *link) apply(op kernel.Op) error {
	switch obj := op.Object.(type) {
	case kernel.DummyDevice:
		if op.Verb == kernel.Delete {
			return l.delete()
		}
		return l.create()
	case kernel.BoundAddress:
		if err := l.applyRoute(op.Verb, obj.Addr); err != nil {
			return fmt.Errorf("change the route of %s to %s: %w", obj.Addr, kernel.Device, err)
		}
		return nil
	}
	return errors.ErrUnsupported
}

func (l *link) applyRoute(verb kernel.Verb, to netip.Addr) error {
	l.setRouted(to, false) // first: the event of a deletion may arrive before its answer
	found, err := l.current()
	if err != nil {
		return err
	}
	if found == nil {
		if verb == kernel.Delete {
			return nil
		}
		return kernel.ErrNotFound
	}
	route := &netlink.Route{
		LinkIndex: found.Attrs().Index, Protocol: kernel.RouteProtocol, Flags: int(netlink.FLAG_ONLINK),
		Dst: single(to), Gw: gateways[inet.FamilyOf(to)].namespace.AsSlice(),
	}
	if verb == kernel.Delete {
		if err := l.node.RouteDel(route); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
		return nil
	}
	l.setRouted(to, true) // first, and also if the answer is lost
	if err := l.node.RouteAdd(route); err != nil {
		if errors.Is(err, unix.EEXIST) {
			l.setRouted(to, false)
			return kernel.InvalidError{Reason: errors.New("another program has a route to this address")}
		}
		return err
	}
	return nil
}
