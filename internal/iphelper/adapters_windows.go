package iphelper

import (
	"errors"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/windows"
)

// readAdapters returns the network interfaces that are up.
func readAdapters() ([]adapter, error) {
	first, err := listAdapters()
	if err != nil {
		return nil, err
	}
	var adapters []adapter
	for a := first; a != nil; a = a.Next {
		if a.OperStatus != windows.IfOperStatusUp {
			continue
		}
		one := adapter{loopback: a.IfType == windows.IF_TYPE_SOFTWARE_LOOPBACK}
		for u := a.FirstUnicastAddress; u != nil; u = u.Next {
			if addr, ok := netip.AddrFromSlice(u.Address.IP()); ok {
				one.addresses = append(one.addresses, netip.PrefixFrom(addr, int(u.OnLinkPrefixLength)))
			}
		}
		for g := a.FirstGatewayAddress; g != nil; g = g.Next {
			if addr, ok := netip.AddrFromSlice(g.Address.IP()); ok {
				one.gateways = append(one.gateways, addr)
			}
		}
		for s := a.FirstDnsServerAddress; s != nil; s = s.Next {
			if addr, ok := netip.AddrFromSlice(s.Address.IP()); ok {
				one.nameservers = append(one.nameservers, addr)
			}
		}
		adapters = append(adapters, one)
	}
	return adapters, nil
}

func listAdapters() (*windows.IpAdapterAddresses, error) {
	size := uint32(15000) // the size that Microsoft's documentation recommends
	for {
		buffer := make([]uint64, (size+7)/8) // aligned for the structures in it
		first := (*windows.IpAdapterAddresses)(unsafe.Pointer(&buffer[0]))
		err := windows.GetAdaptersAddresses(windows.AF_UNSPEC, windows.GAA_FLAG_INCLUDE_GATEWAYS, 0, first, &size)
		if !errors.Is(err, windows.ERROR_BUFFER_OVERFLOW) {
			return first, err
		}
	}
}
