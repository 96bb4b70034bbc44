package compile

import (
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// nodeContext is everything about this node that affects how Services compile.
type nodeContext struct {
	Config
	learned
	// claims are the claims to each frontend, sorted; the first one wins.
	claims map[kernel.ServerKey][]claim
	// atNodes maps frontends to the Services that name an external IP there, if it is an address of a node or pod or in the node's networks.
	// Load balancers that claim the same frontend decide whether these Services get it.
	atNodes map[kernel.ServerKey]map[model.ServiceID]struct{}
	// share limits a Service's entries in each set: see fitSets.
	share  int
	bounds bounds
	work   work
	// virtual indexes the addresses that Services have on this node.
	virtual virtual
}

// learned contains the facts that the agent learns at run time from the kernel and from Node objects.
type learned struct {
	// addresses are the addresses of the node's interfaces, except for kube-ipvs0, loopback and link-local addresses.
	addresses []netip.Addr
	// network contains the addresses that the node's networks need, such as gateways and nameservers. No Service can have such an address,
	// not even as a ClusterIP: if it were bound to kube-ipvs0, this node could not reach its real owner. A nameserver's address may belong
	// to a Service, but not as an external IP.
	network kernel.Network
	subnets []netip.Prefix
	// listeners are the sockets on which the node's processes receive packets, read when a Service last asked for an address of the node;
	// nil if unknown.
	listeners kernel.Listeners
	// left contains the frontends that an earlier agent left in the kernel and that no Service has claimed and released since.
	left      map[FrontendKey]struct{}
	apiServer apiServer
	// object is this node's Node object; nil while unknown.
	object *model.Node
	// primaries and podCIDRs are the last known values of this node's object. They outlive the object: if it is deleted, node ports stay open
	// and pods keep their addresses.
	primaries []netip.Addr
	podCIDRs  []netip.Prefix
	// nodes are all nodes of the cluster by name, including this one.
	nodes map[string]*model.Node
	// weighted counts the nodes whose weight is neither 0 nor 1.
	weighted int
	// podRanges maps the pod ranges of all nodes to node names; podRangeBits contains the prefix lengths.
	podRanges    map[netip.Prefix]string
	podRangeBits map[int]struct{}
	// missing are the schedulers that are not in this node's kernel.
	missing map[string]struct{}
	// otherNodes maps the addresses of all other nodes to their names.
	otherNodes map[netip.Addr]string
}

func newNodeContext(cfg Config) nodeContext {
	return nodeContext{
		Config: cfg,
		learned: learned{
			nodes:      map[string]*model.Node{},
			left:       map[FrontendKey]struct{}{},
			missing:    map[string]struct{}{},
			otherNodes: map[netip.Addr]string{},
		},
		claims:  map[kernel.ServerKey][]claim{},
		atNodes: map[kernel.ServerKey]map[model.ServiceID]struct{}{},
		share:   maxShare,
		bounds:  defaultBounds,
		work:    defaultWork,
		virtual: newVirtual(),
	}
}

// own reports whether an interface of this node has the address. An address that is only in the Node object, such as a public address in a
// cloud, is translated before packets arrive.
func (n *nodeContext) own(a netip.Addr) bool { return slices.Contains(n.addresses, a) }

func (n *nodeContext) serves(f inet.Family) bool { return slices.Contains(n.Families, f) }

func (n *nodeContext) zone() string { return valueOf(n.object).Zone }

// valueOf returns a value from a Node object, or the zero value if there is no object.
func valueOf(object *model.Node) model.Node {
	if object == nil {
		return model.Node{}
	}
	return *object
}

// excluded reports whether the configuration reserves the address for other programs.
func (n *nodeContext) excluded(a netip.Addr) bool { return within(n.Excluded, a) }

func (n *nodeContext) nodePortAddresses(f inet.Family) []netip.Addr {
	if n.NodePorts.Primary {
		return slices.DeleteFunc(n.primary(f), n.excluded)
	}
	unrestricted := !slices.ContainsFunc(n.NodePorts.CIDRs, func(c netip.Prefix) bool { return inet.FamilyOf(c.Addr()) == f })
	var chosen []netip.Addr
	for _, a := range n.addresses {
		if inet.FamilyOf(a) == f && !n.excluded(a) && (unrestricted || within(n.NodePorts.CIDRs, a)) {
			chosen = append(chosen, a)
		}
	}
	return chosen
}

func (n *nodeContext) primary(f inet.Family) []netip.Addr {
	for _, a := range n.primaries {
		if inet.FamilyOf(a) == f {
			return []netip.Addr{a}
		}
	}
	return nil
}
