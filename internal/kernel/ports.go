package kernel

import "slices"

// Ports is a list of port ranges.
type Ports []PortRange

// PortRange contains all ports from First to Last.
type PortRange struct{ First, Last uint16 }

// DefaultLocalPorts is the kernel's default for net.ipv4.ip_local_port_range.
var DefaultLocalPorts = Ports{{32768, 60999}}

// Contain reports whether a port is in one of the ranges.
func (p Ports) Contain(port uint16) bool {
	return slices.ContainsFunc(p, func(r PortRange) bool { return r.First <= port && port <= r.Last })
}

// Count returns the number of ports in ranges that do not overlap.
func (p Ports) Count() (n int) {
	for _, r := range p {
		n += int(r.Last) - int(r.First) + 1
	}
	return n
}

// Without returns the ports that are not in the other ranges.
func (p Ports) Without(others Ports) Ports {
	for _, other := range others {
		var left Ports
		for _, r := range p {
			if r.First < other.First {
				left = append(left, PortRange{r.First, min(r.Last, other.First-1)})
			}
			if other.Last < r.Last {
				left = append(left, PortRange{max(r.First, other.Last+1), r.Last})
			}
		}
		p = left
	}
	return p
}
