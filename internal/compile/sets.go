package compile

import (
	"net/netip"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// SetPrefix starts the name of every set of ours: whatever carries it is ours (I5).
//
// kube-proxy's names are not reused, because its sets differ in what they hold and in how much they can: it aborts its whole
// pass when a set of its name has other parameters, and 65,536 entries are too few for us. See docs/decisions.
const SetPrefix = "KIPVS-"

// maxElem bounds a set; the kernel allocates as it grows. 10,000 Services with 10 ports each fill a tenth.
const maxElem = 1 << 20

// setRef is a set declaration: one row here, used by rules and Services through its name.
type setRef struct {
	name   string
	typ    kernel.SetType
	timing want.Timing
	vips   bool
}

// Every set, for each family.
var (
	// ledger records which virtual servers are ours; no rule matches it.
	ledger = setRef{name: "LEDGER", typ: kernel.HashIPPort, timing: want.Early}
	// limited records which virtual servers have destinations with connection limits; no rule matches it.
	limited = setRef{name: "LIMITED", typ: kernel.HashIPPort, timing: want.Early}
	// hairpin holds endpoint, port and endpoint again: a pod that reached itself must be answered through the node.
	hairpin = setRef{name: "HAIRPIN", typ: kernel.HashIPPortIP, timing: want.Early}
	// vips holds every address on kube-ipvs0: what nobody serves there is rejected.
	vips = setRef{name: "VIP", typ: kernel.HashIP, vips: true}

	// Every port that has an endpoint is in one of these two.
	//
	// clusterIPs: the endpoint sees a pod's own address, and others as the node.
	clusterIPs = setRef{name: "CLUSTER-IP", typ: kernel.HashIPPort}
	// external ports are those of node ports, load balancer and external IPs: the endpoint sees the client's own address, unless
	// the port is masqueraded, too.
	external = setRef{name: "EXTERNAL", typ: kernel.HashIPPort}
	// masqueraded ports have the external policy Cluster: every client is seen as the node. A packet that reached an endpoint
	// elsewhere without that would be answered past this node. So they are known before there are such endpoints and until they
	// are gone, not just while the port is open: nothing but the virtual server itself opens a node port.
	masqueraded = setRef{name: "MASQUERADED", typ: kernel.HashIPPort, timing: want.Guard}

	// noLocal ports drop everybody: the internal policy is Local, and all endpoints are on other nodes.
	noLocal = setRef{name: "NO-LOCAL", typ: kernel.HashIPPort, timing: want.Guard}
	// insideOnly ports drop clients from outside: the external policy is Local, and all endpoints are on other nodes, which
	// pods and the node itself may reach.
	insideOnly = setRef{name: "INSIDE-ONLY", typ: kernel.HashIPPort, timing: want.Guard}
	// allPorts are addresses at which one virtual server takes every port. The node's own packets reach it before the filter
	// table, where the ports that are not served are closed.
	allPorts = setRef{name: "ALL-PORTS", typ: kernel.HashIP, timing: want.Guard}
	// refused ports of the node's own addresses have no endpoint. (On virtual addresses every port is refused that is not served.)
	refused = setRef{name: "REFUSED", typ: kernel.HashIPPort, timing: want.Guard}
	// firewalled ports are for the clients in allowed only.
	firewalled = setRef{name: "FIREWALLED", typ: kernel.HashIPPort, timing: want.Guard}
	// allowed holds address, port and the range of clients that may use it.
	allowed = setRef{name: "ALLOWED", typ: kernel.HashIPPortNet, timing: want.Early}
	// healthPorts are the health check ports of this node: no virtual servers, but a host firewall must let them in, too.
	healthPorts = setRef{name: "HEALTH", typ: kernel.HashIPPort, timing: want.Early}

	allSets = []setRef{
		ledger, limited, hairpin, vips, clusterIPs, external, masqueraded, noLocal, insideOnly, allPorts, refused, firewalled, allowed,
		healthPorts,
	}
	// served are the sets of ports that have an endpoint.
	served = []setRef{clusterIPs, external}
)

// in names the set of a family, for instance KIPVS-6-CLUSTER-IP.
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

// single is the range of one address.
func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
