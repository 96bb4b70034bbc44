package kernel

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Ports is a list of port ranges.
type Ports []PortRange

// PortRange contains all ports from First to Last.
type PortRange struct{ First, Last uint16 }

// DefaultLocalPorts is the kernel's default for net.ipv4.ip_local_port_range.
var DefaultLocalPorts = Ports{{32768, 60999}}

// ParsePorts parses a list such as "8080,9000-9010".
func ParsePorts(list string) (ports Ports, err error) {
	for text := range strings.SplitSeq(list, ",") {
		if text == "" {
			continue
		}
		first, last, isRange := strings.Cut(text, "-")
		if !isRange {
			last = first
		}
		from, err1 := strconv.ParseUint(first, 10, 16)
		to, err2 := strconv.ParseUint(last, 10, 16)
		if err := errors.Join(err1, err2); err != nil {
			return nil, fmt.Errorf("%q is not a range of ports: %w", text, err)
		}
		ports = append(ports, PortRange{First: uint16(from), Last: uint16(to)})
	}
	return ports, nil
}

// String returns the list in the form that ParsePorts accepts.
func (p Ports) String() string {
	texts := make([]string, 0, len(p))
	for _, r := range p {
		text := strconv.Itoa(int(r.First))
		if r.Last != r.First {
			text += "-" + strconv.Itoa(int(r.Last))
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, ",")
}

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

// Common returns the ports that are also in the other ranges.
func (p Ports) Common(others Ports) (both Ports) {
	for _, a := range p {
		for _, b := range others {
			if first, last := max(a.First, b.First), min(a.Last, b.Last); first <= last {
				both = append(both, PortRange{first, last})
			}
		}
	}
	return both
}

// With returns the ports of both lists, sorted and in as few ranges as possible, as the kernel prints them.
func (p Ports) With(others Ports) (all Ports) {
	for _, r := range slices.SortedFunc(slices.Values(slices.Concat(p, others)), func(a, b PortRange) int { return cmp.Compare(a.First, b.First) }) {
		if n := len(all); n > 0 && int(r.First) <= int(all[n-1].Last)+1 {
			all[n-1].Last = max(all[n-1].Last, r.Last)
		} else {
			all = append(all, r)
		}
	}
	return all
}
