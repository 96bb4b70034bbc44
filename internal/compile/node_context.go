package compile

import (
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// nodeContext contains everything about this node that affects how Services are compiled.
type nodeContext struct {
	Config
	learned
	// claims maps each frontend to its sorted claims. The first claim wins.
	claims map[kernel.ServerKey][]claim
	// atNodes maps frontends at addresses of nodes and pods, and in the node's networks, to the Services that request them as external IPs. Load
	// balancers that claim the same frontend decide whether these Services get it.
	atNodes map[kernel.ServerKey]map[model.ServiceID]struct{}
	// share limits a Service's entries in each set (see fitSets).
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
	// network contains the addresses that the node's networks need, such as gateways and nameservers. No Service can have these addresses, not even
	// as a ClusterIP. If one were bound to kube-ipvs0, this node could not reach the address's real owner. A nameserver's address may be a Service's
	// ClusterIP, but not an external IP.
	network kernel.Network
	// networks counts the changes of network.
	networks uint64
	subnets  []netip.Prefix
	// listeners are the sockets on which the node's processes receive packets, as of the last time a Service asked for an address of the node. Nil
	// means unknown.
	listeners kernel.Listeners
	// left contains the frontends that an earlier agent left in the kernel and that no Service has claimed and released since.
	left      map[FrontendKey]struct{}
	apiServer apiServer
	versions  kubernetesVersions
	// object is this node's Node object, or nil while it is unknown.
	object *model.Node
	// primaries and podCIDRs are the last known values of this node's object. The agent keeps them if the object is deleted, because node ports stay
	// open and pods keep their addresses.
	primaries []netip.Addr
	podCIDRs  []netip.Prefix
	// nodes contains all nodes of the cluster by name, including this one.
	nodes map[string]*model.Node
	// weighted counts the nodes whose weight is neither 0 nor 1, and stopped those whose weight is 0.
	weighted, stopped int
	// podRanges maps the pod ranges of all nodes to node names. podRangeBits contains their prefix lengths.
	podRanges    map[netip.Prefix]string
	podRangeBits map[int]struct{}
	// missing contains the schedulers that this node's kernel lacks.
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

// own reports whether an interface of this node has the address. An address that is only in the Node object, such as a public address in a cloud,
// does not count, because packets to it are translated before they arrive.
func (n *nodeContext) own(a netip.Addr) bool { return slices.Contains(n.addresses, a) }

// refusing returns a number that changes when an endpoint that was accepted before may be refused.
func (n *nodeContext) refusing() uint64 { return n.virtual.moves + n.networks }

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
	var chosen []netip.Addr
	if n.NodePorts.Primary {
		chosen = n.primary(f)
	}
	unrestricted := n.NodePorts.unrestricted(f)
	for _, a := range n.addresses {
		if inet.FamilyOf(a) == f && (unrestricted || within(n.NodePorts.CIDRs, a)) && !slices.Contains(chosen, a) {
			chosen = append(chosen, a)
		}
	}
	return slices.DeleteFunc(chosen, n.excluded)
}

func (n *nodeContext) primary(f inet.Family) []netip.Addr {
	for _, a := range n.primaries {
		if inet.FamilyOf(a) == f {
			return []netip.Addr{a}
		}
	}
	return nil
}
