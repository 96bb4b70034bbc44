package compile

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// This file bounds what one Service may ask for. Ports, endpoints, addresses and source ranges multiply, so a few objects that the API
// server accepts could otherwise use up the memory of every agent, the entries of every set, and the time of every sync.

// bounds of one Service, and of all together in each set.
type bounds struct {
	ports int
	// endpoints bounds, in each family, the sum of all ports' endpoints.
	endpoints int
	// external bounds the virtual servers and source range entries, except for ClusterIPs and node ports.
	external int
	// destinations bounds those of all virtual servers, except for ClusterIPs.
	destinations int
	// room is the number of entries above which a set is nearly full.
	room int
}

var defaultBounds = bounds{ports: 1 << 12, endpoints: 1 << 16, external: 1 << 15, destinations: 1 << 19, room: maxElem * 7 / 8}

// maxShare and minShare bound the share of a Service in a set.
const maxShare, minShare = 1 << 16, 1 << 8

const fewer = "use fewer addresses, ports, ranges or endpoints, or several Services"

func (b bounds) tooManyPorts() *refusal {
	return &refusal{fmt.Sprintf("not served: the Service has more than %d ports", b.ports), fewer}
}

func (b bounds) tooManyEndpoints() *refusal {
	return &refusal{fmt.Sprintf("not served: this port and those before it have more than %d endpoints in total", b.endpoints), fewer}
}

func (b bounds) tooMany() *refusal {
	return &refusal{fmt.Sprintf("not served: the Service asks for more than %d virtual servers and source ranges, or %d destinations, in total",
		b.external, b.destinations), fewer}
}

var tooManyForShare = &refusal{"not served: a set of this node is nearly full, and the Service has more entries than most", fewer}

// maxTableKiB bounds the tables of a Service's scheduler.
const maxTableKiB = 32 << 10

// tablesTooLarge reports whether a scheduler is not used because the kernel allocates a table for each virtual server of the Service.
func tablesTooLarge(svc *model.Service, scheduler string) bool {
	return frontendsEverywhere(svc)*model.SchedulerNamed(scheduler).TableKiB > maxTableKiB
}

// frontendsEverywhere counts the virtual servers for which a Service asks. A node port counts as one in each family, so that all nodes decide
// alike, however many addresses each has.
func frontendsEverywhere(svc *model.Service) int {
	servers := len(svc.Ports) * (len(svc.ClusterIPs) + len(svc.LoadBalancerIPs) + len(svc.ExternalIPs))
	for _, p := range svc.Ports {
		if p.NodePort != 0 {
			servers += len(svc.ClusterIPs)
		}
	}
	return servers
}

// allowance has the ports of a Service that are served, and what is left of its bounds for their addresses.
type allowance struct {
	to slicePorts
	// ports are the indices of the served ones.
	ports []int
	// endpoints counts those of the served ports. Each address costs as many destinations.
	endpoints              perFamily
	external, destinations int
	bounds                 bounds
	// shared is true if external is the Service's share in a set, and overShare if the share was not enough.
	shared, overShare bool
}

// admitPorts chooses the ports that are served, and returns the Problems of the others.
func admitPorts(svc *model.Service, n *nodeContext) (a allowance, rejected []model.Problem) {
	a = allowance{
		to: slicePortsOf(svc), ports: make([]int, 0, min(len(svc.Ports), n.bounds.ports)),
		external: n.bounds.external, destinations: n.bounds.destinations, bounds: n.bounds,
	}
	var here perFamily
	for i, port := range svc.Ports {
		if reason := n.objectionToPort(i, port, a, here); reason != nil {
			a.overShare = a.overShare || reason == tooManyForShare
			name := portName(model.EndpointPort{Name: port.Name, Protocol: port.Protocol})
			rejected = append(rejected, problem(svc, fmt.Sprintf("spec.ports[%d]", i), name, reason.reason, reason.remedy))
			continue
		}
		a.ports = append(a.ports, i)
		for _, f := range n.Families {
			a.endpoints[f] += a.to.of(port, f).size()
			if n.setsAreFull() {
				here[f] += a.to.of(port, f).count(n.mayUseItself)
			}
		}
	}
	if left := n.share - len(a.ports); n.setsAreFull() && left < a.external {
		a.external, a.shared = left, true
	}
	return a, rejected
}

// objectionToPort says why a port is not served; nil if it is. here counts the endpoints on this node of the ports before it.
func (n *nodeContext) objectionToPort(i int, port model.ServicePort, a allowance, here perFamily) *refusal {
	if i >= n.bounds.ports {
		return n.bounds.tooManyPorts()
	}
	for _, f := range n.Families {
		at := a.to.of(port, f)
		if a.endpoints[f]+at.size() > n.bounds.endpoints {
			return n.bounds.tooManyEndpoints()
		}
		if n.setsAreFull() && max(i+1, here[f]+at.count(n.mayUseItself)) > n.share {
			return tooManyForShare
		}
	}
	return nil
}

// setsAreFull reports whether Services have only a share of a set, because it was nearly full.
func (n *nodeContext) setsAreFull() bool { return n.share < maxShare }

// mayUseItself reports whether an endpoint may reach itself through this node, which costs an entry of a set.
func (n *nodeContext) mayUseItself(e *model.Endpoint) bool {
	return e.Node == n.NodeName || e.Node == "" || n.NodeName == ""
}

// takeAddress says why an address exceeds the bounds; nil if it does not. An address costs a virtual server for each port, and that of a
// load balancer also an entry for each port and range.
func (a *allowance) takeAddress(svc *model.Service, kind frontendKind, f inet.Family) *refusal {
	cost := len(a.ports)
	switch kind {
	case clusterIP:
		return nil
	case loadBalancerIP:
		cost *= 1 + len(svc.SourceRanges)
	}
	if cost > a.external && a.shared {
		a.overShare = true
		return tooManyForShare
	}
	if cost > a.external || !a.takeDestinations(a.endpoints[f]) {
		return a.bounds.tooMany()
	}
	a.external -= cost
	return nil
}

func (a *allowance) takeDestinations(n int) bool {
	if n > a.destinations {
		return false
	}
	a.destinations -= n
	return true
}

// perFamily has a number for each family, at its index.
type perFamily [inet.IPv6 + 1]int

// slicePort is a port of an EndpointSlice, with the slice's endpoints.
type slicePort struct {
	family inet.Family
	model.EndpointPort
	endpoints []model.Endpoint
}

// slicePorts are the ports of all EndpointSlices of a Service, sorted by family and name, and then in the order of the slices: a Service
// with thousands of ports must not read all slices for each.
type slicePorts []slicePort

func slicePortsOf(svc *model.Service) slicePorts {
	total := 0
	for _, slice := range svc.Slices {
		total += len(slice.Ports)
	}
	all := make(slicePorts, 0, total)
	for _, slice := range svc.Slices {
		for _, port := range slice.Ports {
			all = append(all, slicePort{slice.Family, port, slice.Endpoints})
		}
	}
	slices.SortStableFunc(all, func(a, b slicePort) int { return a.compare(b.family, b.Name, b.Protocol) })
	return all
}

func (p slicePort) compare(f inet.Family, name string, protocol inet.Protocol) int {
	return cmp.Or(cmp.Compare(p.family, f), cmp.Compare(p.Protocol, protocol), strings.Compare(p.Name, name))
}

// of returns what serves a Service port in a family.
func (all slicePorts) of(port model.ServicePort, f inet.Family) slicePorts {
	begin, _ := slices.BinarySearchFunc(all, port, func(p slicePort, port model.ServicePort) int { return p.compare(f, port.Name, port.Protocol) })
	end := begin
	for end < len(all) && all[end].compare(f, port.Name, port.Protocol) == 0 {
		end++
	}
	return all[begin:end]
}

// size counts the endpoints.
func (all slicePorts) size() (n int) {
	for _, p := range all {
		n += len(p.endpoints)
	}
	return n
}

func (all slicePorts) count(which func(*model.Endpoint) bool) (n int) {
	for _, p := range all {
		for i := range p.endpoints {
			if which(&p.endpoints[i]) {
				n++
			}
		}
	}
	return n
}

// fitSets lowers the share of all Services while a set is nearly full, and raises it again when there is room for that. So Services with few
// entries keep them. It returns the Services that were recompiled.
func (c *Cluster) fitSets(touched *want.Touched) (recompiled []model.ServiceID) {
	for c.node.share > minShare && c.state.Fullest() > c.node.bounds.room {
		c.node.share /= 2
		recompiled = append(recompiled, c.update(c.compiledThat(func(s *compiled) bool {
			return slices.Max(append(slices.Collect(maps.Values(s.entries())), 0)) > c.node.share
		}), touched)...)
	}
	for c.node.setsAreFull() && c.hasRoomFor(2*c.node.share) {
		c.node.share *= 2
		recompiled = append(recompiled, c.update(c.compiledThat(func(s *compiled) bool { return s.overShare }), touched)...)
	}
	return recompiled
}

func (c *Cluster) compiledThat(which func(*compiled) bool) map[model.ServiceID]*model.Service {
	chosen := map[model.ServiceID]*model.Service{}
	for id, s := range c.services {
		if which(s) {
			chosen[id] = s.service
		}
	}
	return chosen
}

// hasRoomFor reports whether no set would be nearly full if the Services that are over their share used all of another share.
func (c *Cluster) hasRoomFor(share int) bool {
	sizes := c.state.Sizes()
	for _, s := range c.services {
		if !s.overShare {
			continue
		}
		for set := range sizes {
			sizes[set] += max(share-s.sizes[set], 0)
		}
	}
	return slices.Max(slices.Collect(maps.Values(sizes))) <= c.node.bounds.room
}

// entries counts the Service's entries in each set. The ledger has one for each virtual server.
func (c *compiled) entries() map[string]int {
	entries := map[string]int{}
	for _, s := range c.fragment {
		entries[ledger.in(s.Key.Family())]++
		for _, m := range s.Members {
			entries[m.Set]++
		}
	}
	return entries
}
