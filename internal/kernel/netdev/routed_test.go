package netdev

import (
	"net/netip"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// TestDeletedRoutes: in user space, another program's deletion of a route to a virtual address is noticed, and the agent's own is not.
func TestDeletedRoutes(t *testing.T) {
	routed, removed := netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("10.96.0.2")
	b := &Backend{known: &knownDevice{}}
	b.WatchRoutes(func(a netip.Addr) bool { return a == routed })
	event := func(kind uint16, to netip.Addr, protocol, bits uint8) syscall.NetlinkMessage {
		payload := routeHeader(unix.AF_INET)
		payload[routeBits], payload[routeProtocol], payload[routeType] = bits, protocol, unix.RTN_UNICAST
		return syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: kind}, Data: nlbatch.AppendAttr(payload, unix.RTA_DST, to.AsSlice())}
	}
	for name, one := range map[string]struct {
		event syscall.NetlinkMessage
		want  changes
	}{
		"another program deleted it":  {event(unix.RTM_DELROUTE, routed, kernel.RouteProtocol, 32), deviceChanged},
		"the agent deleted it":        {event(unix.RTM_DELROUTE, removed, kernel.RouteProtocol, 32), 0},
		"another program's own route": {event(unix.RTM_DELROUTE, routed, unix.RTPROT_BOOT, 32), 0},
		"a route to a range":          {event(unix.RTM_DELROUTE, routed, kernel.RouteProtocol, 24), 0},
		"the agent added it":          {event(unix.RTM_NEWROUTE, routed, kernel.RouteProtocol, 32), 0},
	} {
		if got := b.changeOf(one.event); got != one.want {
			t.Errorf("%s: changes %d, want %d", name, got, one.want)
		}
	}
}
