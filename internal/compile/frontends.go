package compile

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// frontend is an address, port and protocol at which a Service port is reached.
type frontend struct {
	key  kernel.ServerKey
	kind frontendKind
	// port is the index in the Service's ports.
	port int
	// ownAddress is true if the address is the node's own and so not bound to kube-ipvs0.
	ownAddress bool
	// field and value are the part of the Service that asks for the frontend.
	field, value string
}

type frontendKind uint8

const (
	clusterIP frontendKind = iota
	loadBalancerIP
	externalIP
	nodePort
	// healthCheck is no frontend, but has a claim: see nodeWideClaims.
	healthCheck
)

// frontendsOf lists a Service's frontends on this node, each key once, and the rejected parts of the Service. overShare is true if some are
// rejected because a set is nearly full.
func frontendsOf(svc *model.Service, n *nodeContext) (all []frontend, rejected []model.Problem, overShare bool) {
	left, rejected := admitPorts(svc, n)
	for _, group := range addressGroups(svc) {
		for i, addr := range group.addrs {
			if !n.serves(inet.FamilyOf(addr)) || !hasFamily(svc, inet.FamilyOf(addr)) || n.excluded(addr) {
				continue
			}
			field := fmt.Sprintf("%s[%d]", group.field, i)
			// Addresses that cannot be served count, too: they take as long.
			if reason := left.takeAddress(svc, group.kind, inet.FamilyOf(addr)); reason != nil {
				rejected = append(rejected, problem(svc, field, addr.String(), reason.reason, reason.remedy))
				continue
			}
			list, problems := n.admit(svc, frontendsAt(svc, left.ports, n, group.kind, addr, field), field)
			rejected = append(rejected, problems...)
			all = append(all, list...)
		}
	}
	withNodePort, problems := n.admitNodePorts(svc, left.ports)
	rejected = append(rejected, problems...)
	for _, f := range nodePortFrontends(svc, withNodePort, n) {
		if left.takeDestinations(left.to.of(svc.Ports[f.port], f.key.Family()).size()) {
			all = append(all, f)
		} else {
			rejected = append(rejected, problem(svc, f.field, f.value, n.bounds.tooMany().reason, fewer))
		}
	}
	return unique(all), rejected, left.overShare
}

// addressGroup is a list of addresses in a Service.
type addressGroup struct {
	kind  frontendKind
	field string
	addrs []netip.Addr
}

// addressGroups are in order of precedence if a Service names an address twice: a kind that restricts clients comes before a kind that does
// not.
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

// frontendsAt lists the frontends of some ports at an address.
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

// unique keeps the first frontend of each key.
func unique(all []frontend) []frontend {
	seen := make(map[kernel.ServerKey]struct{}, len(all))
	return slices.DeleteFunc(all, func(f frontend) bool {
		_, duplicate := seen[f.key]
		seen[f.key] = struct{}{}
		return duplicate
	})
}
