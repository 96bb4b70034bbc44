package compile

import (
	"net/netip"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// SetPrefix is the prefix of the names of all our sets. Any set with this prefix is ours (I5).
//
// kube-proxy's names are not reused, because its sets have a different meaning and are limited to 65,536 entries, which is too few. kube-proxy aborts
// its whole sync if a set with one of its names has different parameters. See docs/decisions.
const SetPrefix = "KIPVS-"

// maxElem limits the number of entries in a set. The kernel allocates memory as a set grows. 10,000 Services with 10
// ports each use a tenth of it.
const maxElem = 1 << 20

// setRef declares a set for both families. Rules and Services refer to a set by its variable.
type setRef struct {
	name   string
	typ    kernel.SetType
	timing want.Timing
	vips   bool
}

var (
	// ledger records which virtual servers are ours. No rule uses it.
	ledger = setRef{name: "LEDGER", typ: kernel.HashIPPort, timing: want.Early}
	// limited records which virtual servers have destinations with connection limits. No rule uses it.
	limited = setRef{name: "LIMITED", typ: kernel.HashIPPort, timing: want.Early}
	// Each entry of hairpin is an endpoint, its port, and the same endpoint again. A pod that connects to itself through a Service is masqueraded, so
	// that its reply passes through the node.
	hairpin = setRef{name: "HAIRPIN", typ: kernel.HashIPPortIP, timing: want.Early}
	// vips contains every address on kube-ipvs0. Unserved ports there are rejected.
	vips = setRef{name: "VIP", typ: kernel.HashIP, vips: true}

	// Every port that has an endpoint is in one of the next two sets.
	//
	// clusterIPs contains the ports of ClusterIPs. The endpoint sees a pod's own address, and the node's address for
	// every other client.
	clusterIPs = setRef{name: "CLUSTER-IP", typ: kernel.HashIPPort}
	// external contains node ports, and the ports of load balancer and external IPs. The endpoint sees the client's own address, unless the client is
	// the node itself, or the port is also in masqueraded.
	external = setRef{name: "EXTERNAL", typ: kernel.HashIPPort}
	// masqueraded ports have the external traffic policy Cluster. The endpoint sees the node's address for every client. Otherwise replies of an
	// endpoint on another node would bypass this node. A port enters this set before endpoints on other nodes receive packets, and leaves it after
	// they are removed, because a node port is open as soon as its virtual server exists.
	masqueraded = setRef{name: "MASQUERADED", typ: kernel.HashIPPort, timing: want.Guard}

	// guarded contains all ports in noLocal, insideOnly and refused, so that a packet to any other port needs only one
	// lookup.
	guarded = setRef{name: "GUARDED", typ: kernel.HashIPPort, timing: want.Guard}
	// guardedIPs contains the addresses in firewalled and allPorts. The node's own packets to other addresses, and packets that IPVS has forwarded to
	// an endpoint, need only one lookup.
	guardedIPs = setRef{name: "GUARDED-IP", typ: kernel.HashIP, timing: want.Guard}
	// noLocal ports drop all packets, because the internal traffic policy is Local, and all endpoints are on other
	// nodes.
	noLocal = setRef{name: "NO-LOCAL", typ: kernel.HashIPPort, timing: want.Guard}
	// insideOnly ports drop packets from outside the cluster, because the external traffic policy is Local, and all endpoints are on other nodes.
	// Pods and the node itself may connect.
	insideOnly = setRef{name: "INSIDE-ONLY", typ: kernel.HashIPPort, timing: want.Guard}
	// allPorts contains the addresses with an all-ports server. The node's own packets reach the server before the filter table, which closes
	// unserved ports to all other packets.
	allPorts = setRef{name: "ALL-PORTS", typ: kernel.HashIP, timing: want.Guard}
	// refused contains ports without endpoints at the node's own addresses. On virtual addresses, every unserved port is refused.
	refused = setRef{name: "REFUSED", typ: kernel.HashIPPort, timing: want.Guard}
	// firewalled ports are open only to the clients in allowed.
	firewalled = setRef{name: "FIREWALLED", typ: kernel.HashIPPort, timing: want.Guard}
	// Each entry of allowed is an address, a port, and a range of clients that may connect to them.
	allowed = setRef{name: "ALLOWED", typ: kernel.HashIPPortNet, timing: want.Early}
	// healthPorts are this node's health check ports. These ports have no virtual servers, but a host firewall must accept packets to them.
	healthPorts = setRef{name: "HEALTH", typ: kernel.HashIPPort, timing: want.Early}

	allSets = []setRef{
		ledger, limited, hairpin, vips, clusterIPs, external, masqueraded, guarded, guardedIPs, noLocal, insideOnly, allPorts, refused,
		firewalled, allowed, healthPorts,
	}
	// served lists the sets of ports that have an endpoint.
	served = []setRef{clusterIPs, external}
)

// in returns the set's name in a family, such as KIPVS-6-CLUSTER-IP.
func (r setRef) in(f inet.Family) string {
	if f == inet.IPv6 {
		return SetPrefix + "6-" + r.name
	}
	return SetPrefix + "4-" + r.name
}

func (r setRef) declare(f inet.Family) want.Set {
	return want.Set{
		Set:    kernel.Set{Name: r.in(f), Type: r.typ, Family: f, MaxElem: maxElem},
		Timing: r.timing,
		VIPs:   r.vips,
	}
}

func (r setRef) address(a netip.Addr) kernel.Member {
	return kernel.Member{Set: r.in(inet.FamilyOf(a)), Element: kernel.Element{Addr: a}}
}

func (r setRef) port(key kernel.ServerKey) kernel.Member {
	return kernel.Member{Set: r.in(key.Family()), Element: kernel.Element{
		Addr: key.Addr.Addr(), Protocol: key.Protocol, Port: key.Addr.Port(),
	}}
}

func (r setRef) self(endpoint netip.AddrPort, p inet.Protocol) kernel.Member {
	return kernel.Member{Set: r.in(inet.FamilyOf(endpoint.Addr())), Element: kernel.Element{
		Addr: endpoint.Addr(), Protocol: p, Port: endpoint.Port(), Addr2: endpoint.Addr(),
	}}
}

func (r setRef) client(key kernel.ServerKey, clients netip.Prefix) kernel.Member {
	return kernel.Member{Set: r.in(key.Family()), Element: kernel.Element{
		Addr: key.Addr.Addr(), Protocol: key.Protocol, Port: key.Addr.Port(),
		Addr2: clients.Addr(), Bits2: uint8(clients.Bits()),
	}}
}

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
