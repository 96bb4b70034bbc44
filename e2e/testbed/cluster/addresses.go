package cluster

import (
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func (h *Host) setAddrs(c *Cluster, p Prefixes, v4, v6 int) {
	if c.has(V4) {
		h.V4 = p.Addr(V4, v4)
	}
	if c.has(V6) {
		h.V6 = p.Addr(V6, v6)
	}
}

// settle waits until the host's IPv6 addresses work. The kernel acknowledges a new address before it adds the local
// route and the multicast group that neighbor discovery needs. An interface needs a link-local address before it
// can solicit neighbors.
func (h *Host) settle() error {
	if !h.cluster.has(V6) {
		return nil
	}
	return Poll(20*time.Second, func() error {
		addrs, err := h.ns.nl.AddrList(nil, netlink.FAMILY_V6)
		if err != nil {
			return err
		}
		local, err := h.ns.nl.RouteListFiltered(netlink.FAMILY_V6,
			&netlink.Route{Table: unix.RT_TABLE_LOCAL}, netlink.RT_FILTER_TABLE)
		if err != nil {
			return err
		}
		type key struct {
			link int
			addr string
		}
		routed := map[key]bool{}
		for _, r := range local {
			if r.Dst != nil {
				routed[key{r.LinkIndex, r.Dst.IP.String()}] = true
			}
		}
		links, err := h.ns.nl.LinkList()
		if err != nil {
			return err
		}
		asks := map[int]bool{} // the interface has a link-local address or needs none
		for _, l := range links {
			asks[l.Attrs().Index] = l.Attrs().OperState != netlink.OperUp
		}
		for _, a := range addrs {
			asks[a.LinkIndex] = asks[a.LinkIndex] || a.IP.IsLinkLocalUnicast()
		}
		for _, a := range addrs {
			if !routed[key{a.LinkIndex, a.IP.String()}] || a.Flags&unix.IFA_F_TENTATIVE != 0 {
				return fmt.Errorf("%s: %s is not usable yet", h.Name, a.IP)
			}
			if !asks[a.LinkIndex] {
				return fmt.Errorf("%s: the interface of %s has no link-local address yet", h.Name, a.IP)
			}
		}
		return nil
	})
}

// AddAddr adds an address ("10.96.0.10", "192.168.50.99/24") and waits until it is usable.
func (h *Host) AddAddr(t T, device, addr string) {
	t.Helper()
	if err := h.AssignAddr(device, addr); err != nil {
		t.Fatalf("%s: add %s to %s: %v", h.Name, addr, device, err)
	}
}

// AssignAddr is like AddAddr, but returns an error instead of failing a test.
func (h *Host) AssignAddr(device, addr string) error {
	p, err := parsePrefix(addr)
	if err != nil {
		return err
	}
	link, err := h.ns.nl.LinkByName(device)
	if err != nil {
		return err
	}
	if err := h.addAddr(link, p); err != nil {
		return err
	}
	return h.settle()
}

// parsePrefix parses a prefix, or an address as a one-address prefix.
func parsePrefix(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	return netip.ParsePrefix(s)
}

func (h *Host) addAddr(link netlink.Link, p netip.Prefix) error {
	a := &netlink.Addr{IPNet: ipNet(p)}
	if p.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD
	}
	if err := h.ns.nl.AddrAdd(link, a); err != nil {
		return fmt.Errorf("%s: address %s: %w", h.Name, p, err)
	}
	return nil
}

// Without a gateway, the route is direct.
func (h *Host) addRoute(dst netip.Prefix, via netip.Addr, link netlink.Link) error {
	r := &netlink.Route{Dst: ipNet(dst)}
	if link != nil {
		r.LinkIndex = link.Attrs().Index
	}
	if via.IsValid() {
		r.Gw = via.AsSlice()
		if link != nil {
			r.SetFlag(netlink.FLAG_ONLINK)
		}
	} else if dst.Addr().Is4() {
		r.Scope = netlink.SCOPE_LINK
	}
	if err := h.ns.nl.RouteReplace(r); err != nil {
		return fmt.Errorf("%s: route %s via %s: %w", h.Name, dst, via, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func anywhere(f Family) netip.Prefix {
	if f == V6 {
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
}

// RouteServiceCIDRVia makes the router send packets for the Service range to a node.
func (c *Cluster) RouteServiceCIDRVia(t T, n *Node) {
	t.Helper()
	for _, f := range c.FamilyList() {
		c.RouteVia(t, c.Service.of(f).String(), n)
	}
}

// RouteVia makes the router send packets for a range ("203.0.113.0/24") or one address to a node.
func (c *Cluster) RouteVia(t T, prefix string, n *Node) {
	t.Helper()
	if err := c.AddRouteVia(prefix, n); err != nil {
		t.Fatalf("%v", err)
	}
}

// AddRouteVia is like RouteVia, but returns an error instead of failing a test.
func (c *Cluster) AddRouteVia(prefix string, n *Node) error {
	p, err := parsePrefix(prefix)
	if err != nil {
		return err
	}
	f := V4
	if p.Addr().Is6() {
		f = V6
	}
	if !c.has(f) {
		return fmt.Errorf("route %s: the cluster has no %v", prefix, f)
	}
	return c.Router.addRoute(p.Masked(), n.Addr(f), nil)
}
