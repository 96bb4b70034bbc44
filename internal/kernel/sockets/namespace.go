package sockets

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/netdev"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/ownthread"
)

// innerLink is the end of the veth pair in the namespace. The other end is kube-ipvs0.
const innerLink = "node"

// gateways are the addresses of the two ends. No interface has them: they only name the neighbors.
var gateways = map[inet.Family]struct{ node, namespace netip.Addr }{
	inet.IPv4: {netip.MustParseAddr("169.254.77.1"), netip.MustParseAddr("169.254.77.2")},
	inet.IPv6: {netip.MustParseAddr("fe80::77:1"), netip.MustParseAddr("fe80::77:2")},
}

// errorSource is the source of ICMPv6 errors about unserved ports. IPv6 does not use the virtual address, because no interface has it, and
// the node would not forward a packet with the only other address, which is link-local.
var errorSource = netip.MustParseAddr("fd77:6b75:6265::1")

// namespace is a network namespace without a name, so it exists only while the process or one of its sockets does. It
// treats every address as its own, so that a port can be opened before its address is routed, and unserved ports are
// refused. It sends everything to the node.
type namespace struct {
	families []inet.Family
	jobs     chan func()
	file     *os.File
	inside   *netlink.Handle
}

func openNamespace(families []inet.Family) (*namespace, error) {
	n, opened := &namespace{families: families, jobs: make(chan func())}, make(chan error)
	ownthread.Go(func() { n.work(opened) })
	if err := <-opened; err != nil {
		return nil, fmt.Errorf("create a network namespace: %w", err)
	}
	return n, nil
}

// work runs jobs on a thread that stays in the namespace.
func (n *namespace) work(opened chan<- error) {
	err := n.setUp()
	if opened <- err; err != nil {
		return
	}
	for job := range n.jobs {
		job()
	}
}

func (n *namespace) setUp() (err error) {
	if err = unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return explain(err)
	}
	if n.file, err = os.Open("/proc/thread-self/ns/net"); err != nil {
		return err
	}
	if n.inside, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return errors.Join(err, n.file.Close())
	}
	if err = n.ownEverything(); err != nil {
		n.inside.Close()
		return errors.Join(explain(err), n.file.Close())
	}
	return nil
}

func explain(err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("requires the capabilities SYS_ADMIN and NET_ADMIN; run the agent as root: %w", err)
	}
	return err
}

// The priorities of routing rules. The kernel looks up all packets in the local table first (priority 0), where every
// address is local here. Packets that the namespace sends itself must therefore match an earlier rule.
const (
	prioritySent = 10 + iota
	priorityArriving
)

func (n *namespace) ownEverything() error {
	lo, err := n.inside.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := n.inside.LinkSetUp(lo); err != nil {
		return err
	}
	for _, f := range n.families {
		every := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: everything(f), Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST}
		if err := n.inside.RouteReplace(every); err != nil {
			return fmt.Errorf("%s: route: %w", f, err)
		}
		sent, arriving, first := rule(f, prioritySent, unix.RT_TABLE_MAIN), rule(f, priorityArriving, unix.RT_TABLE_LOCAL), rule(f, 0, unix.RT_TABLE_LOCAL)
		sent.IifName = "lo"
		if err := errors.Join(n.inside.RuleAdd(sent), n.inside.RuleAdd(arriving), n.inside.RuleDel(first)); err != nil {
			return fmt.Errorf("%s: routing rules: %w", f, err)
		}
		if f == inet.IPv6 {
			// IPv6 does not consider the local table when a socket is bound.
			err := os.WriteFile(netdev.SysctlFile("net/ipv6/ip_nonlocal_bind"), []byte("1"), 0)
			if err = errors.Join(err, n.inside.AddrAdd(lo, &netlink.Addr{IPNet: single(errorSource)})); err != nil {
				return err
			}
		}
	}
	return nil
}

func rule(f inet.Family, priority, table int) *netlink.Rule {
	r := netlink.NewRule()
	r.Family, r.Priority, r.Table = family(f), priority, table
	return r
}

func family(f inet.Family) int {
	if f == inet.IPv6 {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

func everything(f inet.Family) *net.IPNet {
	size := f.Loopback().BitLen()
	return &net.IPNet{IP: make(net.IP, size/8), Mask: net.CIDRMask(0, size)}
}

func single(addr netip.Addr) *net.IPNet {
	return &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(addr.BitLen(), addr.BitLen())}
}

// attach sets up the inner end of a new veth pair. outer is the hardware address of kube-ipvs0.
func (n *namespace) attach(outer net.HardwareAddr) error {
	link, err := n.inside.LinkByName(innerLink)
	if err != nil {
		return err
	}
	if err := n.inside.LinkSetUp(link); err != nil {
		return err
	}
	for _, f := range n.families {
		to := gateways[f].node
		if err := addNeighbor(n.inside, link, to, outer); err != nil {
			return err
		}
		// A gateway must not be local.
		gateway := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: single(to), Table: unix.RT_TABLE_LOCAL, Scope: unix.RT_SCOPE_LINK}
		every := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: everything(f), Gw: to.AsSlice(), Flags: int(netlink.FLAG_ONLINK)}
		if err := errors.Join(n.inside.RouteReplace(gateway), n.inside.RouteReplace(every)); err != nil {
			return fmt.Errorf("default route of the namespace: %w", err)
		}
	}
	return nil
}

// detach removes a veth pair that this process has created, also if its outer end has another name now.
func (n *namespace) detach() error {
	link, err := n.inside.LinkByName(innerLink)
	if notFound := (netlink.LinkNotFoundError{}); errors.As(err, &notFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look up the other end of %s: %w", kernel.Device, err)
	}
	return remove(n.inside, link)
}

// addNeighbor tells the kernel the hardware address, so that it never asks.
func addNeighbor(h *netlink.Handle, link netlink.Link, addr netip.Addr, hardware net.HardwareAddr) error {
	err := h.NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index, State: unix.NUD_PERMANENT, IP: addr.AsSlice(), HardwareAddr: hardware})
	if err != nil {
		return fmt.Errorf("add neighbor %s of %s: %w", addr, link.Attrs().Name, err)
	}
	return nil
}

// do runs a function in the namespace.
func (n *namespace) do(job func()) {
	done := make(chan struct{})
	n.jobs <- func() { defer close(done); job() }
	<-done
}

func (n *namespace) close() error {
	close(n.jobs)
	n.inside.Close()
	return n.file.Close()
}

// Probe returns an error if this process cannot create a namespace and a veth pair. It leaves nothing.
func Probe(families []inet.Family) error {
	n, err := openNamespace(families)
	if err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = kernel.Device
	err = n.inside.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: innerLink})
	if err != nil {
		err = fmt.Errorf("create a veth pair: %w", err)
	}
	return errors.Join(err, n.close())
}
