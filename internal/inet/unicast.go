package inet

import (
	"errors"
	"net/netip"
)

// CheckUnicast returns an error for an address that can be neither a Service's nor an endpoint's: bound on a node, or written as
// a destination, it would catch traffic that is not the Service's. The error says what the address is ("is a loopback
// address"), for a caller that has named it.
func CheckUnicast(a netip.Addr) error {
	switch {
	case !a.IsValid() || a.IsUnspecified():
		return errors.New("is no host's address")
	case a.IsLoopback():
		return errors.New("is a loopback address, which every node has")
	case a.IsMulticast():
		return errors.New("is a multicast address")
	case a.IsLinkLocalUnicast():
		return errors.New("is a link-local address, which means another host on every link")
	case a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return errors.New("is the broadcast address")
	}
	return nil
}
