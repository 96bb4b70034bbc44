package netdev

import (
	"fmt"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// TestPodDevices: a bridge leads to pods if all its ports are ends of veth pairs, and one of them leads to another network namespace.
func TestPodDevices(t *testing.T) {
	link := func(index, master, namespace int) netlink.LinkAttrs {
		return netlink.LinkAttrs{Index: index, Name: fmt.Sprintf("eth%d", index), MasterIndex: master, NetNsID: namespace}
	}
	devices, bridges := podDevices([]netlink.Link{
		&netlink.Device{LinkAttrs: link(1, 0, -1)}, &netlink.Veth{LinkAttrs: link(2, 0, 0)}, &netlink.Veth{LinkAttrs: link(3, 10, 1)},
		&netlink.Veth{LinkAttrs: link(4, 10, -1)}, &netlink.Veth{LinkAttrs: link(5, 11, 2)}, &netlink.Device{LinkAttrs: link(6, 11, -1)},
		&netlink.Bridge{LinkAttrs: link(10, 0, -1)}, &netlink.Bridge{LinkAttrs: link(11, 0, -1)}, &netlink.Bridge{LinkAttrs: link(12, 0, -1)},
	})
	if have := fmt.Sprint(devices, bridges); have != "map[2:eth2 3:eth3 5:eth5] map[10:eth10]" {
		t.Error(have)
	}
}

// TestSample: a sample covers the whole list.
func TestSample(t *testing.T) {
	all := make([]kernel.Pod, 10*mostPods)
	for i := range all {
		all[i].Interface = fmt.Sprint(i)
	}
	if some := sample(all); len(some) != mostPods || some[0].Interface != "0" || some[mostPods-1].Interface != fmt.Sprint(10*(mostPods-1)) {
		t.Errorf("%d addresses, the last behind %s", len(some), some[len(some)-1].Interface)
	}
	if some := sample(all[:3]); len(some) != 3 {
		t.Errorf("%d of 3", len(some))
	}
}
