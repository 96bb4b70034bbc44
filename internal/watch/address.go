package watch

import (
	"errors"
	"net/netip"

	utilnet "k8s.io/utils/net"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
)

// parseAddr parses an address as the API server and kube-proxy do: it treats an IPv4-mapped IPv6 address as IPv4, and octets
// with leading zeros as decimal. Recent API servers reject both forms in new objects, but old objects may contain them.
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

// parsePrefix is as tolerant as parseAddr, and clears host bits.
func parsePrefix(s string) (netip.Prefix, error) {
	errForm := errors.New("must be a CIDR, such as 10.244.1.0/24 or fd00:10:244:1::/64")
	_, network, err := utilnet.ParseCIDRSloppy(s)
	if err != nil {
		return netip.Prefix{}, errForm
	}
	addr, ok := netip.AddrFromSlice(network.IP)
	if !ok {
		return netip.Prefix{}, errForm
	}
	ones, _ := network.Mask.Size()
	if addr.Is4In6() {
		addr, ones = addr.Unmap(), max(0, ones-(128-32))
	}
	return netip.PrefixFrom(addr, ones).Masked(), nil
}

// addresses collects the external addresses of a Service, without duplicates. Invalid addresses become Problems.
type addresses struct {
	list []netip.Addr
	seen map[netip.Addr]struct{} // one object can have tens of thousands of addresses
	*Problems
}

func (a *addresses) addUnique(addr netip.Addr) {
	if _, duplicate := a.seen[addr]; duplicate {
		return
	}
	if a.seen == nil {
		a.seen = map[netip.Addr]struct{}{}
	}
	a.seen[addr] = struct{}{}
	a.list = append(a.list, addr)
}

func (a *addresses) parse(field, value string) {
	addr, err := parseAddr(value)
	switch {
	case err != nil:
		a.Add(field, value, "%v. The address is not served", err)
	case inet.CheckUnicast(addr) != nil:
		a.Add(field, value, "must be an address that clients can reach; this %v. The address is not served", inet.CheckUnicast(addr))
	default:
		a.addUnique(addr)
	}
}
