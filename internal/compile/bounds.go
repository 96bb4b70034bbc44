package compile

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// This file limits the resources that one Service can request. Ports, endpoints, addresses and source ranges multiply, so a few objects
// that the API server accepts could otherwise use up the memory of every agent, the entries of every set, and the time of every sync.

// bounds limits the size of each Service, and the total number of entries in each set.
type bounds struct {
	ports int
	// endpoints limits the sum of all ports' endpoints in each family.
	endpoints int
	// external limits the virtual servers and source range entries, not counting those for ClusterIPs and node ports.
	external int
	// destinations limits the destinations of all virtual servers, not counting those at ClusterIPs.
	destinations int
	// room is the number of entries above which a set is nearly full.
	room int
}

var defaultBounds = bounds{ports: 1 << 12, endpoints: 1 << 16, external: 1 << 15, destinations: 1 << 19, room: maxElem * 7 / 8}

// maxShare and minShare limit a Service's share of a set.
const maxShare, minShare = 1 << 16, 1 << 8

const fewer = "use fewer addresses, ports, ranges or endpoints, or several Services"

func (b bounds) tooManyPorts() *refusal {
	return &refusal{fmt.Sprintf("not served: the Service has more than %d ports", b.ports), fewer}
}

func (b bounds) tooManyEndpoints() *refusal {
	return &refusal{fmt.Sprintf("not served: this port and the ports before it have more than %d endpoints in total", b.endpoints), fewer}
}

func (b bounds) tooMany() *refusal {
	return &refusal{fmt.Sprintf("not served: the Service asks for more than %d virtual servers and source ranges, or %d destinations, in total",
		b.external, b.destinations), fewer}
}

var tooManyForShare = &refusal{"not served: a set of this node is nearly full, and the Service has more entries than most", fewer}

var noSCTPInUserspace = &refusal{"not served: the agent's process cannot forward SCTP", "use --data-plane=auto"}

type perFamily [inet.IPv6 + 1]int

type slicePort struct {
	slice *model.EndpointSlice
	model.EndpointPort
}

// slicePorts are the ports of all EndpointSlices of a Service, sorted by family and name, and then in the order of the slices. Sorting avoids a scan
// of all slices for each of a Service's ports, which may number in the thousands.
type slicePorts []slicePort

func slicePortsOf(svc *model.Service) slicePorts {
	total := 0
	for _, slice := range svc.Slices {
		total += len(slice.Ports)
	}
	all := make(slicePorts, 0, total)
	for _, slice := range svc.Slices {
		for _, port := range slice.Ports {
			all = append(all, slicePort{slice, port})
		}
	}
	slices.SortStableFunc(all, func(a, b slicePort) int { return a.compare(b.slice.Family, b.Name, b.Protocol) })
	return all
}

func (p slicePort) compare(f inet.Family, name string, protocol inet.Protocol) int {
	return cmp.Or(cmp.Compare(p.slice.Family, f), cmp.Compare(p.Protocol, protocol), strings.Compare(p.Name, name))
}

// of returns the slice ports that serve a Service port in a family.
func (all slicePorts) of(port model.ServicePort, f inet.Family) slicePorts {
	begin, _ := slices.BinarySearchFunc(all, port, func(p slicePort, port model.ServicePort) int { return p.compare(f, port.Name, port.Protocol) })
	end := begin
	for end < len(all) && all[end].compare(f, port.Name, port.Protocol) == 0 {
		end++
	}
	return all[begin:end]
}

func (all slicePorts) size() (n int) {
	for _, p := range all {
		n += len(p.slice.Endpoints)
	}
	return n
}

func (all slicePorts) count(which func(*model.Endpoint) bool) (n int) {
	for _, p := range all {
		for i := range p.slice.Endpoints {
			if which(&p.slice.Endpoints[i]) {
				n++
			}
		}
	}
	return n
}

// portName is the EndpointSlice port name that a Service port selects.
func portName(p model.EndpointPort) string {
	if p.Name == "" {
		return "unnamed/" + p.Protocol.String()
	}
	return p.Name + "/" + p.Protocol.String()
}
