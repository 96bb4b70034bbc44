package watch

import (
	"errors"
	"net/netip"

	utilnet "k8s.io/utils/net"
)

// parseAddr reads an address as the API server does, and as kube-proxy does: IPv4 mapped into IPv6 is IPv4, and leading
// zeros are decimal. New objects with either are refused by recent API servers, but old ones are still stored.
func parseAddr(s string) (netip.Addr, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		if a.Zone() != "" {
			return netip.Addr{}, errors.New("must be an IP address without a zone")
		}
		return a.Unmap(), nil
	}
	if a, ok := netip.AddrFromSlice(utilnet.ParseIPSloppy(s)); ok {
		return a.Unmap(), nil
	}
	return netip.Addr{}, errors.New("must be an IP address, such as 10.96.0.10 or fd00::10")
}

// parsePrefix reads a CIDR with the same tolerance, and drops its host bits.
func parsePrefix(s string) (netip.Prefix, error) {
	errForm := errors.New("must be a CIDR, such as 10.244.1.0/24 or fd00:10:244:1::/64")
	_, network, err := utilnet.ParseCIDRSloppy(s)
	if err != nil {
		return netip.Prefix{}, errForm
	}
	addr, ok := netip.AddrFromSlice(network.IP)
	ones, _ := network.Mask.Size()
	if !ok {
		return netip.Prefix{}, errForm
	}
	return netip.PrefixFrom(addr, ones).Masked(), nil
}

// unfit says why an address can be neither that of a Service nor that of an endpoint. The API server refuses these too;
// bound on a node, or written as a destination, they would catch the node's own traffic.
func unfit(a netip.Addr) string {
	switch {
	case a.IsUnspecified():
		return "is the unspecified address"
	case a.IsLoopback():
		return "is a loopback address"
	case a.IsMulticast():
		return "is a multicast address"
	case a.IsLinkLocalUnicast():
		return "is a link-local address"
	case a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return "is the broadcast address"
	}
	return ""
}
