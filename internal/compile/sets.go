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
	name  string
	typ   kernel.SetType
	early bool
	vips  bool
}

// Every set, for each family.
var (
	// ledger records which virtual servers are ours; no rule matches it.
	ledger = setRef{name: "LEDGER", typ: kernel.HashIPPort, early: true}
	// hairpin holds endpoint, port and endpoint again: a pod that reached itself must be answered through the node.
	hairpin = setRef{name: "HAIRPIN", typ: kernel.HashIPPortIP, early: true}
	// vips holds every address on kube-ipvs0: what nobody serves there is rejected.
	vips = setRef{name: "VIP", typ: kernel.HashIP, vips: true}
	// clusterIPs holds the ClusterIP and port of every Service port that has an endpoint.
	clusterIPs = setRef{name: "CLUSTER-IP", typ: kernel.HashIPPort}

	allSets = []setRef{ledger, hairpin, vips, clusterIPs}
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
		Set:   kernel.Set{Name: r.in(f), Type: r.typ, Family: f, MaxElem: maxElem},
		Early: r.early,
		VIPs:  r.vips,
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
