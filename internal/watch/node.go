package watch

import (
	"fmt"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// taintLeaving is the taint that the cluster autoscaler sets on a node that it is about to delete.
const taintLeaving = "ToBeDeletedByClusterAutoscaler"

// The zone comes from the label that the EndpointSlice controller uses, not from the older beta label.
func (c converter) node(node *v1.Node, origin string) *Record {
	r := newRecord(model.KindNode, "", node.Name)
	p := &Problems{Object: r.Key(), Origin: origin}
	r.Node = &model.Node{
		Name:      c.names.name(node.Name),
		Addresses: nodeAddresses(node, p),
		PodCIDRs:  podCIDRs(node, p),
		Zone:      c.names.name(node.Labels[v1.LabelTopologyZone]),
		Leaving: node.DeletionTimestamp != nil ||
			slices.ContainsFunc(node.Spec.Taints, func(t v1.Taint) bool { return t.Key == taintLeaving }),
	}
	annotate(r.Node, node.Annotations, nodeAnnotations, p)
	r.Problems = p.Done()
	return r
}

// maxAddresses is the maximum number of addresses of a Node. No other node serves Services on these addresses, so a kubelet must not be
// able to claim many.
const maxAddresses = 64

// nodeAddresses returns internal addresses before external addresses. It drops addresses that cannot serve traffic, such as a link-local
// address that a cloud provider reports. Such an address is not a mistake, so there is no Problem.
func nodeAddresses(node *v1.Node, p *Problems) []netip.Addr {
	var addrs []netip.Addr
	for _, kind := range []v1.NodeAddressType{v1.NodeInternalIP, v1.NodeExternalIP} {
		for i := range node.Status.Addresses {
			spec := &node.Status.Addresses[i]
			if spec.Type != kind || spec.Address == "" {
				continue
			}
			addr, err := parseAddr(spec.Address)
			switch {
			case err != nil:
				p.Add(fmt.Sprintf("status.addresses[%d].address", i), spec.Address, "%v", err)
			case len(addrs) == maxAddresses:
				p.Add("status.addresses", spec.Address, "must list at most %d addresses. The agent ignores the remaining addresses", maxAddresses)
				return addrs
			case inet.CheckUnicast(addr) == nil && !slices.Contains(addrs, addr):
				addrs = append(addrs, addr)
			}
		}
	}
	return slices.Clip(addrs)
}

func podCIDRs(node *v1.Node, p *Problems) []netip.Prefix {
	values, field := node.Spec.PodCIDRs, "spec.podCIDRs[%d]"
	if len(values) == 0 && node.Spec.PodCIDR != "" {
		values, field = []string{node.Spec.PodCIDR}, "spec.podCIDR"
	}
	var prefixes []netip.Prefix
	for i, value := range values {
		prefix, err := parsePrefix(value)
		if err != nil {
			path := field
			if field != "spec.podCIDR" {
				path = fmt.Sprintf(field, i)
			}
			p.Add(path, value, "%v", err)
			continue
		}
		prefixes = append(prefixes, prefix)
	}
	return slices.Clip(prefixes)
}
