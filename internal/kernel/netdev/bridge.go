package netdev

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Bridges returns the bridges of this node, sorted by name.
func (b *Backend) Bridges() ([]kernel.Bridge, error) {
	links, err := b.links.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list the interfaces of this node: %w", err)
	}
	filtered := map[inet.Family]bool{}
	for _, f := range inet.Families {
		value, err := b.sysctls.read(kernel.BridgeFilter(f))
		filtered[f] = err == nil && value == "1" // the sysctl does not exist without the module
	}
	var bridges []kernel.Bridge
	for _, link := range links {
		if link.Type() != "bridge" {
			continue
		}
		bridge := kernel.Bridge{Name: link.Attrs().Name, Filtered: filtered}
		bridge.Containers = slices.ContainsFunc(links, func(port netlink.Link) bool {
			return port.Attrs().MasterIndex == link.Attrs().Index && port.Attrs().NetNsID >= 0
		})
		if bridge.Families, err = b.familiesOf(link); err != nil {
			return nil, err
		}
		bridges = append(bridges, bridge)
	}
	slices.SortFunc(bridges, func(a, b kernel.Bridge) int { return strings.Compare(a.Name, b.Name) })
	return bridges, nil
}

// familiesOf returns the families in which an interface has an address that is not link-local.
func (b *Backend) familiesOf(link netlink.Link) (families []inet.Family, err error) {
	for family, number := range map[inet.Family]int{inet.IPv4: netlink.FAMILY_V4, inet.IPv6: netlink.FAMILY_V6} {
		addrs, err := b.links.AddrList(link, number)
		if err != nil {
			return nil, fmt.Errorf("list the addresses of %s: %w", link.Attrs().Name, err)
		}
		if slices.ContainsFunc(addrs, func(a netlink.Addr) bool { return !a.IP.IsLinkLocalUnicast() }) {
			families = append(families, family)
		}
	}
	slices.Sort(families)
	return families, nil
}
