package netdev

import (
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

// proxysDevice creates the device as kube-proxy does, without a mark.
const proxysDevice = "ip link add kube-ipvs0 type dummy && ip addr add 10.96.0.1/32 dev kube-ipvs0 && ip addr add fd00::1/128 dev kube-ipvs0 nodad"

// freshly opens a new backend. It has no recorded state, like an agent that has just started.
func (n *node) freshly() *node {
	n.Helper()
	labtest.Need(n)
	b, err := New()
	n.must(err)
	n.Cleanup(func() { _ = b.Close() })
	return &node{n.TB, b, n.ns}
}

func (n *node) alias(name string) string {
	n.Helper()
	link, err := netlink.LinkByName(name)
	n.must(err)
	return link.Attrs().Alias
}

func (n *node) wantAlias(name, want string) {
	n.Helper()
	if have := n.alias(name); have != want {
		n.Errorf("the alias of %s is %q, want %q", name, have, want)
	}
}

func TestTakenOverDevice(t *testing.T) {
	n := newNode(t)
	n.run(proxysDevice)
	n.TakeOver()
	n.wantAlias(kernel.Device, "") // nothing has been read yet
	n.want(true, "10.96.0.1", "fd00::1")
	n.wantNode()
	n.wantAlias(kernel.Device, "") // a read writes nothing
	n.TakeOver()
	n.wantAlias(kernel.Device, deviceAlias)

	n.run("ip link set kube-ipvs0 name old")
	n.wantNode()
	fresh := n.freshly()
	fresh.wantNode()
	fresh.must(fresh.apply(kernel.Create, kernel.DummyDevice{}))
	fresh.want(true, "10.96.0.1", "fd00::1")
}

func TestRenamedBeforeMark(t *testing.T) {
	n := newNode(t)
	n.run(proxysDevice)
	n.want(true, "10.96.0.1", "fd00::1")
	n.run("ip link set kube-ipvs0 name old")
	n.wantNode()
	n.want(false)
	n.freshly().wantNode("10.96.0.1", "fd00::1") // nothing shows that the device is the agent's
	n.must(n.apply(kernel.Create, kernel.DummyDevice{}))
	n.want(true, "10.96.0.1", "fd00::1")
	n.wantAlias(kernel.Device, deviceAlias)

	n.run("ip link set kube-ipvs0 alias theirs name old; ip link add kube-ipvs0 type dummy")
	n.wantNode() // neither device counts as the node's
}

func TestMarkRemoved(t *testing.T) {
	n := newNode(t)
	n.must(n.apply(kernel.Create, kernel.DummyDevice{}, bound("10.96.0.1")))
	n.run("ip link set kube-ipvs0 alias '' name old")
	n.wantNode()
	n.must(n.apply(kernel.Create, kernel.DummyDevice{}))
	n.want(true, "10.96.0.1")
	n.wantAlias(kernel.Device, deviceAlias)
}

func TestForeignDeviceGetsNoMark(t *testing.T) {
	n := newNode(t)
	n.run("ip link add kube-ipvs0 type bridge; ip addr add 10.0.0.1/32 dev kube-ipvs0")
	n.want(false)
	n.TakeOver()
	n.wantAlias(kernel.Device, "")
	n.run("ip link set kube-ipvs0 name br0")
	n.wantNode("10.0.0.1")
}

func TestTakeOverWithoutPermission(t *testing.T) {
	n := newNode(t)
	n.run(proxysDevice)
	n.want(true, "10.96.0.1", "fd00::1")
	n.withoutCapabilities(n.TakeOver)
	n.wantAlias(kernel.Device, "")
	n.must(n.apply(kernel.Create, bound("10.96.0.2")))
	n.TakeOver()
	n.wantAlias(kernel.Device, deviceAlias)
}

func (n *node) withoutCapabilities(f func()) {
	n.Helper()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var all [2]unix.CapUserData
	n.must(unix.Capget(&header, &all[0]))
	none := all
	none[0].Effective, none[1].Effective = 0, 0
	n.must(unix.Capset(&header, &none[0]))
	defer func() { n.must(unix.Capset(&header, &all[0])) }()
	f()
}
