package ipvs

import (
	"encoding/binary"
	"fmt"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel/sockopt"
)

const (
	// optionInfo is IP_VS_SO_GET_INFO of linux/ip_vs.h.
	optionInfo = 64 + 1024 + 64 + 1
	// infoSize is the size of struct ip_vs_getinfo: version, table size, number of virtual servers.
	infoSize = 3 * 4
)

// CountIPv4 counts the IPv4 virtual servers, including firewall-mark servers. Netlink has no request for the count, and the kernel does not
// count IPv6 virtual servers.
func CountIPv4(s *sockopt.Socket) (int, error) {
	buf := make([]byte, infoSize)
	if err := s.Get(optionInfo, buf); err != nil {
		return 0, fmt.Errorf("count virtual servers: %w", err)
	}
	return int(binary.NativeEndian.Uint32(buf[8:])), nil
}
