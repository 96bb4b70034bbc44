package watch

import (
	"errors"
	"net/netip"

	utilnet "k8s.io/utils/net"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
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
	if !ok {
		return netip.Prefix{}, errForm
	}
	ones, _ := network.Mask.Size()
	if addr.Is4In6() {
		addr, ones = addr.Unmap(), max(0, ones-(128-32))
	}
	return netip.PrefixFrom(addr, ones).Masked(), nil
}

// addresses collects those of a Service that clients outside the cluster use: each good one once. Bad ones are Problems.
type addresses struct {
	list []netip.Addr
	seen map[netip.Addr]struct{} // one object can hold tens of thousands
	*problems
}

func (a *addresses) once(addr netip.Addr) {
	if _, again := a.seen[addr]; again {
		return
	}
	if a.seen == nil {
		a.seen = map[netip.Addr]struct{}{}
	}
	a.seen[addr] = struct{}{}
	a.list = append(a.list, addr)
}

func (a *addresses) read(field, value string) {
	addr, err := parseAddr(value)
	switch {
	case err != nil:
		a.add(field, value, "%v. This address is not served", err)
	case inet.Unfit(addr) != "":
		a.add(field, value, "must be an address that clients can reach; this %s. It is not served", inet.Unfit(addr))
	default:
		a.once(addr)
	}
}
