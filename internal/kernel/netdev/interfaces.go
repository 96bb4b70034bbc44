package netdev

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Interfaces returns the interfaces of this node, sorted by name.
func (b *Backend) Interfaces() ([]kernel.Interface, error) {
	links, err := b.links.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list the interfaces of this node: %w", err)
	}
	addrs, err := b.links.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list the addresses of this node: %w", err)
	}
	names, addressed, networks := map[int]string{0: ""}, map[int]bool{}, map[int][]netip.Prefix{}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	for _, a := range addrs {
		addressed[a.LinkIndex] = addressed[a.LinkIndex] || !a.IP.IsLinkLocalUnicast()
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			bits, _ := a.Mask.Size()
			networks[a.LinkIndex] = append(networks[a.LinkIndex], netip.PrefixFrom(addr.Unmap(), bits))
		}
	}
	all := make([]kernel.Interface, 0, len(links))
	for _, l := range links {
		a := l.Attrs()
		i := kernel.Interface{
			Name: a.Name, Index: a.Index, Kind: l.Type(), MTU: a.MTU, Up: a.Flags&net.FlagUp != 0, Master: names[a.MasterIndex],
			Container: a.NetNsID >= 0, Addressed: addressed[a.Index], PerPacket: perPacket(l), XDP: a.Xdp != nil && a.Xdp.Attached,
			MAC: a.HardwareAddr.String(), Ethernet: a.EncapType == "ether", NoARP: a.RawFlags&unix.IFF_NOARP != 0, Networks: networks[a.Index],
			NoCarrier: a.Flags&net.FlagUp != 0 && a.RawFlags&unix.IFF_LOWER_UP == 0,
		}
		if !i.Container { // otherwise the index belongs to the other namespace
			i.Parent = names[a.ParentIndex]
		}
		all = append(all, i)
	}
	slices.SortFunc(all, func(a, b kernel.Interface) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

func perPacket(l netlink.Link) bool {
	switch t := l.(type) {
	case *netlink.Vxlan:
		return t.FlowBased
	case *netlink.Geneve:
		return t.FlowBased
	case *netlink.Iptun:
		return t.FlowBased
	case *netlink.Gretun:
		return t.FlowBased
	case *netlink.Gretap:
		return t.FlowBased
	}
	return false
}
