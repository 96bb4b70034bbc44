package compile

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

func (n *nodeContext) setNode(name string, object *model.Node) {
	n.countWeight(n.nodes[name], -1)
	n.countWeight(object, +1)
	if object == nil {
		delete(n.nodes, name)
		return
	}
	n.nodes[name] = object
}

func (n *nodeContext) countWeight(object *model.Node, by int) {
	switch weight := weightOf(object); {
	case weight > 1:
		n.weighted += by
	case weight == 0:
		n.stopped += by
	}
}

// setThisNode records this node's object, and reports whether the node's pod ranges have changed.
func (n *nodeContext) setThisNode(object *model.Node) bool {
	n.object = object
	node := valueOf(object)
	if len(node.Addresses) > 0 {
		n.primaries = node.Addresses
	}
	if len(node.PodCIDRs) == 0 || slices.Equal(node.PodCIDRs, n.podCIDRs) {
		return false
	}
	n.podCIDRs = node.PodCIDRs
	return true
}

// updateOtherNodes finds the nodes with the given addresses. If two nodes have the same address, the first by name gets it.
func (n *nodeContext) updateOtherNodes(addrs map[netip.Addr]struct{}) {
	if len(addrs) == 0 {
		return
	}
	for a := range addrs {
		delete(n.otherNodes, a)
	}
	for _, name := range slices.Sorted(maps.Keys(n.nodes)) {
		if name == n.NodeName {
			continue
		}
		for _, a := range n.nodes[name].Addresses {
			if _, ok := addrs[a]; ok && n.otherNodes[a] == "" {
				n.otherNodes[a] = name
			}
		}
	}
}

// updatePodRanges collects the pod ranges of all nodes. If two nodes have the same range, the first by name gets it.
func (n *nodeContext) updatePodRanges() {
	n.podRanges, n.podRangeBits = map[netip.Prefix]string{}, map[int]struct{}{}
	for _, name := range slices.Sorted(maps.Keys(n.nodes)) {
		for _, r := range n.nodes[name].PodCIDRs {
			if n.podRanges[r] == "" {
				n.podRanges[r] = name
			}
			n.podRangeBits[r.Bits()] = struct{}{}
		}
	}
}

// nodeOfPod returns the node whose pod ranges contain an address, or an empty name if there is no such node. EndpointSlices do not count, because
// their authors could reserve any address.
func (n *nodeContext) nodeOfPod(a netip.Addr) string {
	if within(n.podCIDRs, a) {
		return n.NodeName
	}
	for bits := range n.podRangeBits {
		if r, err := a.Prefix(bits); err == nil && n.podRanges[r] != "" {
			return n.podRanges[r]
		}
	}
	return ""
}

func weightOf(object *model.Node) uint32 {
	if node := valueOf(object); node.WeightSet {
		return node.Weight
	}
	return 1
}

func addAddresses(to map[netip.Addr]struct{}, object *model.Node) {
	for _, a := range valueOf(object).Addresses {
		to[a] = struct{}{}
	}
}

// changedRanges lists the pod ranges of two versions of a Node object if they differ.
func changedRanges(a, b *model.Node) []netip.Prefix {
	before, after := valueOf(a).PodCIDRs, valueOf(b).PodCIDRs
	if slices.Equal(before, after) {
		return nil
	}
	return slices.Concat(before, after)
}

// equalToServices reports whether the difference between two versions of this node's object affects no Service.
func equalToServices(a, b *model.Node) bool {
	return a != nil && b != nil && slices.Equal(a.Addresses, b.Addresses) && a.Zone == b.Zone
}
