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
		return errors.New("is a link-local address, which names a different host on every link")
	case a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return errors.New("is the broadcast address")
	case thisNetwork.Contains(a):
		return errors.New("is in 0.0.0.0/8, which is reserved")
	case slices.Contains(metadata, a):
		return errors.New("is a cloud's metadata server, which provides credentials or commands to nodes")
	}
	return nil
}

var thisNetwork = netip.MustParsePrefix("0.0.0.0/8")

// metadata lists the addresses of the clouds' metadata servers that are not link-local (169.254.169.254 is): IPv6 addresses
// of AWS, Google Cloud and Oracle Cloud, and IPv4 addresses of Azure, Alibaba Cloud and Oracle's older cloud. Azure's server
// also sends commands to the agent on Azure's machines, and is their nameserver and health probe.
var metadata = []netip.Addr{
	netip.MustParseAddr("fd00:ec2::254"), netip.MustParseAddr("fd20:ce::254"), netip.MustParseAddr("fd00:c1::a9fe:a9fe"),
	netip.MustParseAddr("168.63.129.16"), netip.MustParseAddr("100.100.100.200"), netip.MustParseAddr("192.0.0.192"),
}
