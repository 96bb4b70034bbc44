package compile

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// front is one address and port at which a Service port is reached.
type front struct {
	key  kernel.ServerKey
	kind frontKind
	// port is the index in the Service's ports.
	port int
	// own says that the address is the node's, so that it is there already.
	own bool
	// field and value say where in the Service it comes from.
	field, value string
}

type frontKind uint8

const (
	clusterIP frontKind = iota
	loadBalancerIP
	externalIP
	nodePort
)

// fronts lists where a Service is to be reached on this node, each key once, and what in the Service cannot be.
func fronts(svc *model.Service, p *place) ([]front, []model.Problem) {
	var problems []model.Problem
	var all []front
	for _, group := range addressGroups(svc) {
		for i, addr := range group.addrs {
			if !p.serves(inet.FamilyOf(addr)) || !hasFamily(svc, inet.FamilyOf(addr)) || p.excluded(addr) {
				continue
			}
			field := fmt.Sprintf("%s[%d]", group.field, i)
			if reason := p.reasonToRefuse(group.kind, addr); reason != "" {
				problems = append(problems, problem(svc, field, addr.String(), "this address is not served: it "+reason))
				continue
			}
			if theirs := p.neighbours[addr]; theirs != "" && !p.own(addr) {
				if group.kind != clusterIP {
					continue // the other node serves it: bound here, this node could not reach that one any more
				}
				// Whoever runs a node may write any address into its Node object: that takes no ClusterIP from the cluster.
				problems = append(problems, problem(svc, field, addr.String(), "is served, but the Node object "+theirs+
					" has this address, too, and cannot be reached at it; want "+fitAddress[clusterIP]))
			}
			all = append(all, frontsAt(svc, p, group.kind, addr, field)...)
		}
	}
	all = append(all, nodePortFronts(svc, p)...)
	return unique(all), problems
}

// addressGroup is a list of addresses in a Service.
type addressGroup struct {
	kind  frontKind
	field string
	addrs []netip.Addr
}

// addressGroups are in the order in which they win when a Service names an address twice: what restricts clients comes before
// what does not.
func addressGroups(svc *model.Service) []addressGroup {
	return []addressGroup{
		{clusterIP, "spec.clusterIPs", svc.ClusterIPs},
		{loadBalancerIP, "status.loadBalancer.ingress", svc.LoadBalancerIPs},
		{externalIP, "spec.externalIPs", svc.ExternalIPs},
	}
}

func hasFamily(svc *model.Service, f inet.Family) bool {
	return slices.ContainsFunc(svc.ClusterIPs, func(a netip.Addr) bool { return inet.FamilyOf(a) == f })
}

func frontsAt(svc *model.Service, p *place, kind frontKind, addr netip.Addr, field string) []front {
	list := make([]front, len(svc.Ports))
	for i, port := range svc.Ports {
		key := kernel.ServerKey{Addr: netip.AddrPortFrom(addr, port.Port), Protocol: port.Protocol}
		list[i] = front{key: key, kind: kind, port: i, own: kind != clusterIP && p.own(addr), field: field, value: key.Addr.String() + "/" + key.Protocol.String()}
		if kind == clusterIP {
			list[i].field = fmt.Sprintf("spec.ports[%d].port", i)
		}
	}
	return list
}

func nodePortFronts(svc *model.Service, p *place) []front {
	var list []front
	for i, port := range svc.Ports {
		if port.NodePort == 0 {
			continue
		}
		for _, f := range p.Families {
			if !hasFamily(svc, f) {
				continue
			}
			for _, addr := range p.nodePortAddresses(f) {
				list = append(list, front{
					key:   kernel.ServerKey{Addr: netip.AddrPortFrom(addr, port.NodePort), Protocol: port.Protocol},
					kind:  nodePort,
					port:  i,
					own:   true,
					field: fmt.Sprintf("spec.ports[%d].nodePort", i),
					value: fmt.Sprintf("%d/%s", port.NodePort, port.Protocol),
				})
			}
		}
	}
	return list
}

// unique keeps the first front of each key.
func unique(all []front) []front {
	seen := make(map[kernel.ServerKey]struct{}, len(all))
	return slices.DeleteFunc(all, func(f front) bool {
		_, again := seen[f.key]
		seen[f.key] = struct{}{}
		return again
	})
}

// reasonToRefuse says why an address cannot be one of a Service on this node; it is empty for a good one.
func (p *place) reasonToRefuse(kind frontKind, a netip.Addr) string {
	if reason := inet.Unfit(a); reason != "" {
		return reason + "; want " + fitAddress[kind]
	}
	switch {
	case kind == clusterIP && slices.Contains(p.addresses, a):
		return "is an address of this node, whose own ports would be closed on it; want " + fitAddress[kind]
	case kind == externalIP && p.ExternalIPs.Off:
		return "is an external IP, and this cluster's configuration serves none; want a Service of type LoadBalancer or NodePort"
	case kind == externalIP && len(p.ExternalIPs.Allowed) > 0 && !within(p.ExternalIPs.Allowed, a):
		return fmt.Sprintf("is not in the ranges that this cluster allows for external IPs; want one in %v", p.ExternalIPs.Allowed)
	}
	return ""
}

var fitAddress = map[frontKind]string{
	clusterIP:      "an address of the cluster's Service range",
	loadBalancerIP: "the address of a load balancer",
	externalIP:     "a unicast address that is routed to the nodes",
}
