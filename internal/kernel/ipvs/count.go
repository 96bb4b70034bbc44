package ipvs

import (
	"encoding/binary"
	"fmt"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel/sockopt"
)

const (
	// optionInfo is IP_VS_SO_GET_INFO of linux/ip_vs.h.
	optionInfo = 64 + 1024 + 64 + 1
	// infoSize is that of struct ip_vs_getinfo: version, size of the table, number of virtual servers.
	infoSize = 3 * 4
)

// CountIPv4 counts the virtual servers of IPv4, those by firewall mark included. Netlink has no such request, and the kernel does not count
// those of IPv6.
func CountIPv4(s *sockopt.Socket) (int, error) {
	buf := make([]byte, infoSize)
	if err := s.Get(optionInfo, buf); err != nil {
		return 0, fmt.Errorf("count virtual servers: %w", err)
	}
	return int(binary.NativeEndian.Uint32(buf[8:])), nil
}
