package kernel

import (
	"net/netip"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
)

// Listeners contains the addresses and ports on which processes of this node receive TCP connections and UDP datagrams. The unspecified
// address represents every address.
type Listeners map[ServerKey]struct{}

// At reports whether a process listens on an address and port. A process that listens on :: counts for IPv4, too, although its socket may be
// IPv6-only.
func (l Listeners) At(key ServerKey) bool {
	any4, any6 := netip.AddrPortFrom(netip.IPv4Unspecified(), key.Addr.Port()), netip.AddrPortFrom(netip.IPv6Unspecified(), key.Addr.Port())
	for _, at := range []netip.AddrPort{key.Addr, any4, any6} {
		if at == any4 && key.Family() == inet.IPv6 {
			continue
		}
		if _, ok := l[ServerKey{Addr: at, Protocol: key.Protocol}]; ok {
			return true
		}
	}
	return false
}
