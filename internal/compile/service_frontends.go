package compile

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// frontendsOf returns a Service's frontends on this node, with unique keys, and the rejected parts of the Service.
func frontendsOf(svc *model.Service, n *nodeContext) (c Compiled) {
	left, rejected := admitPorts(svc, n)
	taken := map[kernel.ServerKey]struct{}{}
	isTaken := func(f frontend) bool {
		_, exists := taken[f.key]
		return exists
	}
	take := func(list ...frontend) {
		for _, f := range list {
			if !isTaken(f) {
				taken[f.key] = struct{}{}
				c.frontends = append(c.frontends, f)
			}
		}
	}
	for _, group := range addressGroups(svc) {
		for i, addr := range group.addrs {
			if n.ignores(svc, addr) {
				continue
			}
			field := fmt.Sprintf("%s[%d]", group.field, i)
			// Addresses that cannot be served also count, because they cause just as much work.
			if reason := left.takeAddress(svc, group.kind, inet.FamilyOf(addr)); reason != nil {
				rejected = append(rejected, problem(svc, field, addr.String(), reason.reason, reason.remedy))
				continue
			}
			list := slices.DeleteFunc(frontendsAt(svc, left.ports, n, group.kind, addr, field), isTaken)
			if group.kind == externalIP && n.ofANode(group.kind, addr) {
				for _, f := range list {
					c.atNodes = append(c.atNodes, f.key)
				}
			}
			admitted, problems := n.admit(svc, list, field)
			rejected = append(rejected, problems...)
			take(admitted...)
		}
	}
	withNodePort, problems := n.admitNodePorts(svc, left.ports)
	rejected = append(rejected, problems...)
	for _, f := range nodePortFrontends(svc, withNodePort, n) {
		if left.takeDestinations(left.to.of(svc.Ports[f.port], f.key.Family()).size()) {
			take(f)
		} else {
			rejected = append(rejected, problem(svc, f.field, f.value, n.bounds.tooMany().reason, fewer))
		}
	}
	c.rejected, c.overShare = rejected, left.overShare
	return c
}

// ignores reports whether another agent, or none, serves an address.
func (n *nodeContext) ignores(svc *model.Service, addr netip.Addr) bool {
	return !n.serves(inet.FamilyOf(addr)) || !hasFamily(svc, inet.FamilyOf(addr)) || n.excluded(addr)
}

func frontendsAt(svc *model.Service, ports []int, n *nodeContext, kind frontendKind, addr netip.Addr, field string) []frontend {
	list := make([]frontend, len(ports))
	for j, i := range ports {
		port := svc.Ports[i]
		key := kernel.ServerKey{Addr: netip.AddrPortFrom(addr, port.Port), Protocol: port.Protocol}
		list[j] = frontend{
			key: key, kind: kind, port: i, ownAddress: n.own(addr),
			field: field, value: key.Addr.String() + "/" + key.Protocol.String(),
		}
		if kind == clusterIP {
			list[j].field = fmt.Sprintf("spec.ports[%d].port", i)
		}
	}
	return list
}

func nodePortFrontends(svc *model.Service, ports []int, n *nodeContext) []frontend {
	var list []frontend
	for _, i := range ports {
		port := svc.Ports[i]
		for _, f := range n.Families {
			if !hasFamily(svc, f) {
				continue
			}
			for _, addr := range n.nodePortAddresses(f) {
				list = append(list, frontend{
					key:        kernel.ServerKey{Addr: netip.AddrPortFrom(addr, port.NodePort), Protocol: port.Protocol},
					kind:       nodePort,
					port:       i,
					ownAddress: true,
					field:      fmt.Sprintf("spec.ports[%d].nodePort", i),
					value:      fmt.Sprintf("%d/%s", port.NodePort, port.Protocol),
				})
			}
		}
	}
	return list
}

// allowance contains the ports of a Service that are served, and the resources that remain for their addresses.
type allowance struct {
	to slicePorts
	// ports are the indices of the served ports.
	ports []int
	// endpoints counts the endpoints of the served ports. Each address needs that many destinations.
	endpoints              perFamily
	external, destinations int
	bounds                 bounds
	// shared is true if external is the Service's share of a set. overShare is true if the share was not enough.
	shared, overShare bool
}

// admitPorts chooses the ports to serve, and returns the Problems of all others.
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

// objectionToPort returns why a port is not served, or nil if it is. here counts this node's endpoints of the preceding
// ports.
func (n *nodeContext) objectionToPort(i int, port model.ServicePort, a allowance, here perFamily) *refusal {
	if i >= n.bounds.ports {
		return n.bounds.tooManyPorts()
	}
	if n.Mode == kernel.Userspace && port.Protocol == inet.SCTP {
		return noSCTPInUserspace
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

// setsAreFull reports whether Services are limited to a share of each set because a set was nearly full.
func (n *nodeContext) setsAreFull() bool { return n.share < maxShare }

// mayUseItself reports whether an endpoint may connect to itself through this node.
func (n *nodeContext) mayUseItself(e *model.Endpoint) bool {
	return e.Node == n.NodeName || e.Node == "" || n.NodeName == ""
}

// takeAddress returns why an address exceeds the bounds, or nil if it does not. An address needs a virtual server for each port. A load balancer's
// address also needs a set entry for each port and source range.
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

// unsettled lists a Service's frontends for Cluster.Unsettled.
func (n *nodeContext) unsettled(svc *model.Service) (unsettled []FrontendKey, atNode, waits bool) {
	if !n.asksForNodes(svc) {
		return nil, false, false
	}
	left, _ := admitPorts(svc, n)
	for _, group := range addressGroups(svc) {
		for _, addr := range group.addrs {
			if n.ignores(svc, addr) || !n.ofANode(group.kind, addr) || left.takeAddress(svc, group.kind, inet.FamilyOf(addr)) != nil {
				continue
			}
			for _, f := range frontendsAt(svc, left.ports, n, group.kind, addr, group.field) {
				if !n.served(svc, f) {
					unsettled = append(unsettled, f.frontendKey())
					needed, occupied := n.needsListeners(svc, f), n.listeners.At(f.key)
					atNode, waits = atNode || needed && !occupied, waits || needed && occupied
				}
			}
		}
	}
	return unsettled, atNode, waits
}

// asksForNodes reports whether a Service requests an address of a node or pod, or one in the node's networks.
func (n *nodeContext) asksForNodes(svc *model.Service) bool {
	return slices.ContainsFunc(addressGroups(svc), func(group addressGroup) bool {
		return slices.ContainsFunc(group.addrs, func(a netip.Addr) bool { return n.ofANode(group.kind, a) })
	})
}

func (n *nodeContext) ofANode(kind frontendKind, a netip.Addr) bool {
	return n.own(a) || kind != clusterIP && (n.otherNodes[a] != "" || n.nodeOfPod(a) != "") || kind == externalIP && within(n.subnets, a)
}
