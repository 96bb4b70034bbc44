package draw

import (
	"net/netip"
	"slices"
)

// primary is the setting that serves node ports at the Node object's first address of each family only.
const primary = "primary"

// nodePortSettings are the values of nodePortAddresses that both programs get in turn. The second one says nothing of IPv6, so
// that all of the node's IPv6 addresses count.
var nodePortSettings = [][]string{nil, {"192.168.50.0/24"}, {primary}, {"192.168.50.0/24", "fd00:50::/64"}}

// NodePortAddresses are the first node's addresses at which node ports are served.
func (s Set) NodePortAddresses(w World) []netip.Addr {
	if slices.Contains(s.NodePorts, primary) {
		return s.Nodes[0].Internal
	}
	return slices.DeleteFunc(slices.Clone(w.Interfaces), func(a netip.Addr) bool {
		ranges := s.NodePortRanges(a.Is6())
		return len(ranges) > 0 && !slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(a) })
	})
}

// NodePortRanges are those of a family that the setting names; none means all addresses.
func (s Set) NodePortRanges(v6 bool) []netip.Prefix {
	var ranges []netip.Prefix
	for _, text := range s.NodePorts {
		if r, err := netip.ParsePrefix(text); err == nil && r.Addr().Is6() == v6 {
			ranges = append(ranges, r)
		}
	}
	return ranges
}

// nodePortSetting changes once in the middle of each batch, so that the next one goes on with it.
func (d *Drawer) nodePortSetting() []string {
	n := d.batch - 1
	if d.changed >= 2 {
		n++
	}
	return nodePortSettings[max(0, n)%len(nodePortSettings)]
}
