package healthport

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// TestAddressRemovedAndAdded: a port responds again after its address is removed and restored, and opens when a missing
// address appears.
func TestAddressRemovedAndAdded(t *testing.T) {
	labtest.NetNSNoIPVS(t)
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	addr := netip.MustParseAddr("192.0.2.77")
	change := func(change func(netlink.Link, *netlink.Addr) error) {
		t.Helper()
		if err := change(lo, &netlink.Addr{IPNet: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(32, 32)}}); err != nil {
			t.Fatal(err)
		}
	}
	n := newNode(t)
	defer n.closeAll()
	settle := func() { time.Sleep(2 * n.retry); n.settle(t.Context()) } // on this goroutine, whose thread is in the network namespace
	n.SetAddresses([]netip.Addr{addr})
	n.Update(map[model.ServiceID]Port{web: {30999, 1}})
	settle()
	if !strings.Contains(n.failure(web), "192.0.2.77:30999: ") || !open(home6, 30999) {
		t.Errorf("wrong failures before the address exists: %v", n.failures)
	}
	change(netlink.AddrAdd)
	settle()
	if n.failures[web] != nil || !open(addr, 30999) {
		t.Errorf("the port does not respond after the address was added: %v", n.failures)
	}
	change(netlink.AddrDel)
	settle()
	if open(addr, 30999) {
		t.Error("the port is still open on the removed address")
	}
	change(netlink.AddrAdd)
	if !open(addr, 30999) {
		t.Error("the port does not respond on the restored address")
	}
}
