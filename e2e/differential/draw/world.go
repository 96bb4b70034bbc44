package draw

import (
	"net/netip"
	"slices"
)

// World describes the network: nodes, pods and clients.
type World struct {
	// The first node runs the programs under comparison. The last node exists only as a Node object, so a program may
	// intercept its traffic.
	Nodes []Node
	// Pods answer on all Ports over every protocol.
	Pods  []Pod
	Ports []int32
	// Interfaces contains all addresses of the first node, including those unknown to the cluster.
	Interfaces []netip.Addr
	Clients    []Client
}

// Client is a host that connects to Services.
type Client struct {
	Name  string
	Place Place
	Addrs []netip.Addr
}

// Place is the location of a client.
type Place string

// The places of clients.
const (
	InPod   Place = "a pod of the first node"
	OnNode  Place = "the first node itself"
	Outside Place = "outside the cluster"
)

// Client returns the named client.
func (w World) Client(name string) Client {
	i := slices.IndexFunc(w.Clients, func(c Client) bool { return c.Name == name })
	if i < 0 {
		return Client{Name: name, Place: InPod}
	}
	return w.Clients[i]
}

// Node is a node as its object describes it.
type Node struct {
	Name string
	Zone string
	// Internal addresses are on the node's interfaces. Other systems route External addresses to the node.
	Internal, External []netip.Addr
}

// Pod is a pod with its own network namespace.
type Pod struct {
	Name, Node string
	V4, V6     netip.Addr
}

// Here returns the node that runs the programs under comparison.
func (w World) Here() Node { return w.Nodes[0] }

// OtherNode returns the node that exists only as a Node object.
func (w World) OtherNode() Node { return w.Nodes[len(w.Nodes)-1] }

// Addr returns the pod's address in the given family.
func (p Pod) Addr(v6 bool) netip.Addr {
	if v6 {
		return p.V6
	}
	return p.V4
}

// Addresses returns all addresses of the node.
func (n Node) Addresses() []netip.Addr {
	return append(append([]netip.Addr{}, n.Internal...), n.External...)
}

// Objects use addresses in these ranges. The lab's router routes BalancerRanges and ExternalRanges to the node.
var (
	ClusterRanges  = pair{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:10:96::/112")}
	BalancerRanges = pair{netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("2001:db8:113::/112")}
	ExternalRanges = pair{netip.MustParsePrefix("198.18.7.0/24"), netip.MustParsePrefix("2001:db8:18::/112")}
	// nowhere is for endpoints that never answer. Only their table entries are compared.
	nowhere = pair{netip.MustParsePrefix("10.244.3.0/24"), netip.MustParsePrefix("fd00:10:244:3::/112")}
)

// Virtual returns the ranges that contain all Service addresses.
func Virtual() []netip.Prefix {
	return []netip.Prefix{ClusterRanges.V4, ClusterRanges.V6, BalancerRanges.V4, BalancerRanges.V6, ExternalRanges.V4, ExternalRanges.V6}
}

const (
	contestedHost = 200 // a load balancer's address that several Services claim
	ownHost       = 241 // in the Service range: an IPv4 address of the first node's interface
	otherHost     = 243 // in the Service range: an address in another Node object
	ownPublicHost = 211 // in the load balancers' range: an address in the first Node object
)

type pair struct{ V4, V6 netip.Prefix }

func (p pair) addr(v6 bool, n int) netip.Addr {
	base := p.V4
	if v6 {
		base = p.V6
	}
	b := base.Addr().AsSlice()
	b[len(b)-2], b[len(b)-1] = b[len(b)-2]+byte(n>>8), byte(n)
	a, _ := netip.AddrFromSlice(b)
	return a
}

// OwnClusterIP returns the address in the Service range that is on the first node's interface.
func OwnClusterIP() netip.Addr { return ClusterRanges.addr(false, high+ownHost) }

// SpecialExternal returns external addresses in the ranges above: those in the first Node object, and those in another
// Node object.
func SpecialExternal() (here, other []netip.Addr) {
	for _, v6 := range []bool{false, true} {
		here = append(here, BalancerRanges.addr(v6, ownPublicHost))
		other = append(other, ClusterRanges.addr(v6, high+otherHost))
	}
	return here, other
}

// high is the start of the special addresses in the Service range.
const high = 250 << 8
