package compile

import (
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// place is this node among the others: its configuration, and what is learnt about it while it runs.
type place struct {
	Config
	// addresses of the node's interfaces, without kube-ipvs0, loopback and link-local ones.
	addresses []netip.Addr
	// node is this node's object; nil while unknown.
	node *model.Node
	// primaries are the addresses that this node's object had when it last had any.
	primaries []netip.Addr
	// nodes are all nodes of the cluster, this one too, by name.
	nodes map[string]*model.Node
	// missing are schedulers that this node's kernel does not have.
	missing map[string]struct{}
	// neighbours maps the addresses of all other nodes to their names.
	neighbours map[netip.Addr]string
	// virtual are the addresses that Services have on this node.
	virtual virtual
}

// own says whether an interface of this node has the address. One that only its Node object has (a cloud's, which translates it)
// arrives here as another.
func (p *place) own(a netip.Addr) bool { return slices.Contains(p.addresses, a) }

func (p *place) serves(f inet.Family) bool { return slices.Contains(p.Families, f) }

func (p *place) zone() string {
	if p.node == nil {
		return ""
	}
	return p.node.Zone
}

// excluded says whether the address is left to others by configuration.
func (p *place) excluded(a netip.Addr) bool { return within(p.Excluded, a) }

// nodePortAddresses lists the addresses of a family at which node ports are served.
func (p *place) nodePortAddresses(f inet.Family) []netip.Addr {
	if p.NodePorts.Primary {
		return slices.DeleteFunc(p.primary(f), p.excluded)
	}
	anywhere := !slices.ContainsFunc(p.NodePorts.CIDRs, func(c netip.Prefix) bool { return inet.FamilyOf(c.Addr()) == f })
	var chosen []netip.Addr
	for _, a := range p.addresses {
		if inet.FamilyOf(a) == f && !p.excluded(a) && (anywhere || within(p.NodePorts.CIDRs, a)) {
			chosen = append(chosen, a)
		}
	}
	return chosen
}

func (p *place) primary(f inet.Family) []netip.Addr {
	for _, a := range p.primaries {
		if inet.FamilyOf(a) == f {
			return []netip.Addr{a}
		}
	}
	return nil
}

func within(ranges []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(a) })
}
