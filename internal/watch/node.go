package watch

import (
	"fmt"
	"net/netip"

	v1 "k8s.io/api/core/v1"
)

// node parses a Node: its pod CIDRs. They are never nil, so that "none assigned" differs from "not known".
func (c converter) node(node *v1.Node, origin string) *record {
	r := newRecord(KindNode, "", node.Name)
	p := &problems{object: r.key().String(), origin: origin}
	values, field := node.Spec.PodCIDRs, "spec.podCIDRs[%d]"
	if len(values) == 0 && node.Spec.PodCIDR != "" {
		values, field = []string{node.Spec.PodCIDR}, "spec.podCIDR"
	}
	r.podCIDRs = make([]netip.Prefix, 0, len(values))
	for i, value := range values {
		prefix, err := parsePrefix(value)
		if err != nil {
			path := field
			if field != "spec.podCIDR" {
				path = fmt.Sprintf(field, i)
			}
			p.add(path, value, "%v", err)
			continue
		}
		r.podCIDRs = append(r.podCIDRs, prefix)
	}
	r.problems = p.done()
	return r
}
