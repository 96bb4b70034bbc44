package inet

import (
	"errors"
	"net/netip"
	"slices"
)

// CheckUnicast returns an error for an address that neither a Service nor an endpoint can have: binding it on a node, or using
// it as a destination, would capture other traffic. The error completes a sentence about the address ("is a loopback address").
func CheckUnicast(a netip.Addr) error {
	switch {
	case !a.IsValid() || a.IsUnspecified():
		return errors.New("is not a host address")
	case a.IsLoopback():
		return errors.New("is a loopback address, which every node has")
	case a.IsMulticast():
		return errors.New("is a multicast address")
	case a.IsLinkLocalUnicast():
		return errors.New("is a link-local address, which means another host on every link")
	case a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return errors.New("is the broadcast address")
	case slices.Contains(metadata, a):
		return errors.New("is a cloud's metadata server, which holds a node's credentials")
	}
	return nil
}

// metadata are the IPv6 addresses of the metadata servers of AWS, Google Cloud and Oracle Cloud. In IPv4 all of them use
// 169.254.169.254, which is link-local.
var metadata = []netip.Addr{
	netip.MustParseAddr("fd00:ec2::254"), netip.MustParseAddr("fd20:ce::254"), netip.MustParseAddr("fd00:c1::a9fe:a9fe"),
}
