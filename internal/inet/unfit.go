package inet

import "net/netip"

// Unfit says why an address can be neither that of a Service nor that of an endpoint; it is empty for a good one. Bound on a
// node, or written as a destination, such an address would catch traffic that was never meant for the Service.
func Unfit(a netip.Addr) string {
	switch {
	case !a.IsValid() || a.IsUnspecified():
		return "is no host's address"
	case a.IsLoopback():
		return "is a loopback address, which would be every node's own"
	case a.IsMulticast():
		return "is a multicast address"
	case a.IsLinkLocalUnicast():
		return "is a link-local address, which means another host on every link"
	case a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return "is the broadcast address"
	}
	return ""
}
