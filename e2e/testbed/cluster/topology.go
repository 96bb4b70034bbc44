package cluster

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/vishvananda/netlink"
)

// The last byte of a host's address is firstHost+n in IPv4 and 0x10+n in IPv6: node-1 is .11 and ::11.
const (
	firstHost = 10
	maxHosts  = 200
)

var (
	underlay = Prefixes{netip.MustParsePrefix("192.168.50.0/24"), netip.MustParsePrefix("fd00:50::/64")}
	outside  = Prefixes{netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("2001:db8:51::/64")}
	services = Prefixes{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:10:96::/112")}

	// Every routed pod reaches its node at these addresses.
	podGateway = map[Family]netip.Addr{V4: netip.MustParseAddr("169.254.1.1"), V6: netip.MustParseAddr("fe80::1")}
)

// Sees reports whether an endpoint that sees source was reached by client. In user space, it sees the node that forwards the connection.
func Sees(source, client netip.Addr) bool {
	return source == client || Userspace() && (underlay.V4.Contains(source) || underlay.V6.Contains(source))
}

func podCIDR(node int) Prefixes {
	return Prefixes{
		netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", node)),
		netip.MustParsePrefix(fmt.Sprintf("fd00:10:244:%x::/64", node)),
	}
}

func (p Prefixes) of(f Family) netip.Prefix {
	if f == V6 {
		return p.V6
	}
	return p.V4
}

func (c *Cluster) only(p Prefixes) Prefixes {
	if !c.has(V4) {
		p.V4 = netip.Prefix{}
	}
	if !c.has(V6) {
		p.V6 = netip.Prefix{}
	}
	return p
}

func (c *Cluster) build() (err error) {
	c.Service = c.only(services)
	if c.Router, err = c.newHost("router"); err != nil {
		return err
	}
	if err := c.Router.prepare(true, 0); err != nil {
		return err
	}
	if err := c.bridge(c.Router, "underlay", underlay, "0"); err != nil {
		return err
	}
	if err := c.bridge(c.Router, "outside", outside, "0"); err != nil {
		return err
	}
	c.Router.setAddrs(c, underlay, 1, 1)
	for i := 1; i <= c.Config.Nodes; i++ {
		if err := c.addNode(i); err != nil {
			return fmt.Errorf("node-%d: %w", i, err)
		}
	}
	for i := 1; i <= c.Config.Clients; i++ {
		h, err := c.newHost(fmt.Sprintf("client-%d", i))
		if err == nil {
			c.Clients = append(c.Clients, h)
			err = c.attach(h, i, "outside", outside)
		}
		if err != nil {
			return fmt.Errorf("client-%d: %w", i, err)
		}
	}
	for _, h := range c.hosts {
		if err := h.settle(); err != nil {
			return err
		}
	}
	return nil
}

// prepare sets sysctls explicitly, because a new namespace inherits the machine's IPv4 sysctls.
func (h *Host) prepare(forward bool, rpFilter int) error {
	bit := map[bool]string{false: "0", true: "1"}
	return h.Do(func() error {
		var errs []error
		set := func(key, value string) { errs = append(errs, writeSysctl(key, value)) }
		for _, scope := range []string{"all", "default"} {
			v4, v6 := "net/ipv4/conf/"+scope+"/", "net/ipv6/conf/"+scope+"/"
			set(v4+"forwarding", bit[forward])
			set(v4+"rp_filter", fmt.Sprint(rpFilter))
			set(v4+"send_redirects", "0") // nodes, router and clients share networks
			set(v4+"accept_redirects", "0")
			set(v4+"arp_ignore", "0")
			set(v4+"arp_announce", "0")
			set(v4+"route_localnet", "0")
			set(v4+"src_valid_mark", "0")
			set(v6+"disable_ipv6", "0")
			set(v6+"accept_dad", "0")
			set(v6+"dad_transmits", "0")
			set(v6+"accept_ra", "0")
			set(v6+"autoconf", "0")
			set(v6+"router_solicitations", "0")
			set(v6+"accept_redirects", "0")
			set(v6+"forwarding", bit[forward])
		}
		set("net/ipv4/ip_forward", bit[forward])
		set("net/ipv4/icmp_ratelimit", "0")
		set("net/ipv6/icmp/ratelimit", "0")
		return errors.Join(errs...)
	})
}

// bridgeNetfilter sets whether iptables sees bridged packets. Its sysctls exist only if br_netfilter is loaded.
func (h *Host) bridgeNetfilter(value string) error {
	return h.Do(func() error {
		for _, what := range []string{"iptables", "ip6tables"} {
			err := writeSysctl("net/bridge/bridge-nf-call-"+what, value)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
		return nil
	})
}

func (c *Cluster) bridge(h *Host, name string, net Prefixes, netfilter string) error {
	// Without a fixed MAC address, the address would change with the ports and leave stale neighbor entries.
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = name, macOf(h.Name+"/"+name)
	snoop := false
	br := &netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &snoop}
	if err := h.ns.nl.LinkAdd(br); err != nil {
		return fmt.Errorf("bridge %s on %s: %w", name, h.Name, err)
	}
	if err := h.ns.nl.LinkSetUp(br); err != nil {
		return err
	}
	if err := h.bridgeNetfilter(netfilter); err != nil {
		return err
	}
	for _, f := range c.FamilyList() {
		if err := h.addAddr(br, netip.PrefixFrom(net.Addr(f, 1), net.of(f).Bits())); err != nil {
			return err
		}
	}
	return nil
}

// macOf returns a locally administered MAC address.
func macOf(name string) net.HardwareAddr {
	sum := fnv.New64a()
	sum.Write([]byte(name))
	mac := sum.Sum(nil)[:6]
	mac[0] = mac[0]&^3 | 2
	return mac
}

// awaitUp waits until an interface can send. The kernel activates its queue in the background and drops packets
// sent before that.
func (h *Host) awaitUp(name string) error {
	return Poll(10*time.Second, func() error {
		link, err := h.ns.nl.LinkByName(name)
		if err != nil {
			return err
		}
		if state := link.Attrs().OperState; state != netlink.OperUp {
			return fmt.Errorf("%s on %s is %v, not up", name, h.Name, state)
		}
		return nil
	})
}

// veth connects two hosts and brings both ends up.
func veth(a *Host, aName string, b *Host, bName string) (aEnd, bEnd netlink.Link, err error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = aName, macOf(a.Name+"/"+aName)
	pair := &netlink.Veth{
		LinkAttrs:        attrs,
		PeerName:         bName,
		PeerHardwareAddr: macOf(b.Name + "/" + bName),
		PeerNamespace:    netlink.NsFd(b.ns.fd()),
	}
	if err := a.ns.nl.LinkAdd(pair); err != nil {
		return nil, nil, fmt.Errorf("veth %s:%s - %s:%s: %w", a.Name, aName, b.Name, bName, err)
	}
	if bEnd, err = b.ns.nl.LinkByName(bName); err != nil {
		return nil, nil, err
	}
	if err := a.ns.nl.LinkSetUp(pair); err != nil {
		return nil, nil, err
	}
	if err := b.ns.nl.LinkSetUp(bEnd); err != nil {
		return nil, nil, err
	}
	return pair, bEnd, errors.Join(a.awaitUp(aName), b.awaitUp(bName))
}

func (h *Host) plug(port netlink.Link, bridge string) error {
	br, err := h.ns.nl.LinkByName(bridge)
	if err != nil {
		return err
	}
	if err := h.ns.nl.LinkSetMaster(port, br); err != nil {
		return err
	}
	return h.awaitUp(bridge) // the bridge is down until it has a port
}

func (c *Cluster) attach(h *Host, n int, bridge string, net Prefixes) error {
	if err := h.prepare(bridge == "underlay", c.Config.RPFilter); err != nil {
		return err
	}
	eth0, port, err := veth(h, "eth0", c.Router, h.Name)
	if err != nil {
		return err
	}
	if err := c.Router.plug(port, bridge); err != nil {
		return err
	}
	h.setAddrs(c, net, firstHost+n, 0x10+n)
	for _, f := range c.FamilyList() {
		if err := h.addAddr(eth0, netip.PrefixFrom(h.Addr(f), net.of(f).Bits())); err != nil {
			return err
		}
		if err := h.addRoute(anywhere(f), net.Addr(f, 1), nil); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) addNode(i int) error {
	h, err := c.newHost(fmt.Sprintf("node-%d", i))
	if err != nil {
		return err
	}
	n := &Node{Host: h, Index: i, PodCIDR: c.only(podCIDR(i))}
	if err := c.attach(h, i, "underlay", underlay); err != nil {
		return err
	}
	for _, f := range c.FamilyList() {
		for _, other := range c.Nodes {
			if err := n.addRoute(other.PodCIDR.of(f), other.Addr(f), nil); err != nil {
				return err
			}
			if err := other.addRoute(n.PodCIDR.of(f), n.Addr(f), nil); err != nil {
				return err
			}
		}
		if err := c.Router.addRoute(n.PodCIDR.of(f), n.Addr(f), nil); err != nil {
			return err
		}
	}
	c.Nodes = append(c.Nodes, n)
	if c.Config.Bridge {
		return c.bridge(h, "cni0", n.PodCIDR, "1")
	}
	return nil
}

// Pod creates a pod on the node.
func (n *Node) Pod(t T, name string) *Pod {
	t.Helper()
	p, err := n.AddPod(name)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return p
}

// AddPod creates a pod on the node. Addresses are not reused.
func (n *Node) AddPod(name string) (*Pod, error) {
	c := n.cluster
	h, err := c.newHost(name)
	if err != nil {
		return nil, fmt.Errorf("pod %s: %w", name, err)
	}
	p := &Pod{Host: h, Node: n, Veth: vethName(name)}
	n.mu.Lock()
	n.pods++
	number := n.pods + 1 // .1 is the node's in bridge mode
	n.mu.Unlock()
	h.setAddrs(c, n.PodCIDR, number, number)
	if err = p.connect(); err == nil {
		err = errors.Join(p.settle(), n.settle())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("pod %s: %w", name, err), p.Delete())
	}
	return p, nil
}

func vethName(pod string) string {
	const limit = 15
	if name := "pod-" + pod; len(name) <= limit {
		return name
	}
	sum := fnv.New32a()
	sum.Write([]byte(pod))
	return fmt.Sprintf("pod-%.5s-%05x", pod, sum.Sum32()&0xfffff)
}

func (p *Pod) connect() error {
	n := p.Node
	if err := p.prepare(false, 0); err != nil {
		return err
	}
	port, eth0, err := veth(n.Host, p.Veth, p.Host, "eth0")
	if err != nil {
		return err
	}
	if p.cluster.Config.Bridge {
		return p.connectBridged(port, eth0)
	}
	return p.connectRouted(port, eth0)
}

// The pod's gateway is the bridge's address.
func (p *Pod) connectBridged(port, eth0 netlink.Link) error {
	n := p.Node
	if err := n.plug(port, "cni0"); err != nil {
		return err
	}
	if err := n.ns.nl.LinkSetHairpin(port, true); err != nil {
		return err
	}
	for _, f := range p.cluster.FamilyList() {
		if err := p.addAddr(eth0, netip.PrefixFrom(p.Addr(f), n.PodCIDR.of(f).Bits())); err != nil {
			return err
		}
		if err := p.addRoute(anywhere(f), n.PodCIDR.Addr(f, 1), nil); err != nil {
			return err
		}
	}
	return nil
}

func (p *Pod) connectRouted(port, eth0 netlink.Link) error {
	n, c := p.Node, p.cluster
	if c.has(V4) {
		// The node answers ARP for the pod's gateway, although no interface has that address.
		err := n.Do(func() error {
			return errors.Join(
				writeSysctl("net/ipv4/conf/"+p.Veth+"/proxy_arp", "1"),
				writeSysctl("net/ipv4/neigh/"+p.Veth+"/proxy_delay", "0"))
		})
		if err != nil {
			return err
		}
	}
	if c.has(V6) {
		if err := n.addAddr(port, netip.PrefixFrom(podGateway[V6], 64)); err != nil {
			return err
		}
	}
	for _, f := range c.FamilyList() {
		if err := p.addAddr(eth0, netip.PrefixFrom(p.Addr(f), p.Addr(f).BitLen())); err != nil {
			return err
		}
		if err := p.addRoute(anywhere(f), podGateway[f], eth0); err != nil {
			return err
		}
		if err := n.addRoute(netip.PrefixFrom(p.Addr(f), p.Addr(f).BitLen()), netip.Addr{}, port); err != nil {
			return err
		}
	}
	return nil
}

// Delete kills the pod's processes, resets its connections and removes its interface.
func (p *Pod) Delete() error {
	c, n := p.cluster, p.Node
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	if closed {
		return nil
	}
	p.end()
	// Delete the interface here: the kernel would delete it only some time after the namespace.
	if link, err := n.ns.nl.LinkByName(p.Veth); err == nil {
		if err := n.ns.nl.LinkDel(link); err != nil {
			return fmt.Errorf("pod %s: %w", p.Name, err)
		}
	}
	return c.removeHost(p.Host)
}
