package draw

import (
	"net/netip"
	"slices"
)

// With primary, node ports are served only on the Node object's first address in each family.
const primary = "primary"

// nodePortSettings are the consecutive values of nodePortAddresses. The second one contains no IPv6 range, so it
// selects all of the node's IPv6 addresses.
var nodePortSettings = [][]string{nil, {"192.168.50.0/24"}, {primary}, {"192.168.50.0/24", "fd00:50::/64"}}

// NodePortAddresses returns the first node's addresses that serve node ports.
func (s Set) NodePortAddresses(w World) []netip.Addr {
	if slices.Contains(s.NodePorts, primary) {
		return s.Nodes[0].Internal
	}
	return slices.DeleteFunc(slices.Clone(w.Interfaces), func(a netip.Addr) bool {
		ranges := s.NodePortRanges(a.Is6())
		return len(ranges) > 0 && !slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(a) })
	})
}

// NodePortRanges returns the ranges of nodePortAddresses for a family. No range means all addresses.
func (s Set) NodePortRanges(v6 bool) []netip.Prefix {
	var ranges []netip.Prefix
	for _, text := range s.NodePorts {
		if r, err := netip.ParsePrefix(text); err == nil && r.Addr().Is6() == v6 {
			ranges = append(ranges, r)
		}
	}
	return ranges
}

// The setting changes once in the middle of each batch, and the next batch keeps it.
func (d *Drawer) nodePortSetting() []string {
	n := d.batch - 1
	if d.changed >= 2 {
		n++
	}
	return nodePortSettings[max(0, n)%len(nodePortSettings)]
}
