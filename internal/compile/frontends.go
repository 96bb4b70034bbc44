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
)

// maxExternal bounds a Service's virtual servers and source range entries, except for ClusterIPs and node ports. Addresses, ports and ranges
// multiply, so an object that the API server accepts could use up the memory of every agent and all entries of the sets.
const maxExternal = 1 << 15

// frontendsOf lists a Service's frontends on this node, each key once, and the rejected parts of the Service.
func frontendsOf(svc *model.Service, n *nodeContext) (all []frontend, rejected []model.Problem) {
	left := maxExternal
	for _, group := range addressGroups(svc) {
		for i, addr := range group.addrs {
			if !n.serves(inet.FamilyOf(addr)) || !hasFamily(svc, inet.FamilyOf(addr)) || n.excluded(addr) {
				continue
			}
			field := fmt.Sprintf("%s[%d]", group.field, i)
			list, problems := n.admit(svc, frontendsAt(svc, n, group.kind, addr, field), field)
			rejected = append(rejected, problems...)
			if len(list) == 0 {
				continue
			}
			if left < group.cost {
				rejected = append(rejected, problem(svc, field, addr.String(), tooMany.reason, tooMany.remedy))
				continue
			}
			left -= group.cost
			all = append(all, list...)
		}
	}
	all = append(all, nodePortFrontends(svc, n)...)
	return unique(all), rejected
}

// tooMany is the Problem of an address that would exceed maxExternal.
var tooMany = refusal{
	fmt.Sprintf("not served: the Service asks for more than %d virtual servers and source ranges in total", maxExternal),
	"use fewer addresses, ports or ranges, or several Services",
}

// addressGroup is a list of addresses in a Service.
type addressGroup struct {
	kind  frontendKind
	field string
	addrs []netip.Addr
	// cost is the share of maxExternal that each address uses.
	cost int
}

// addressGroups are in order of precedence if a Service names an address twice: a kind that restricts clients comes before a kind that does
// not.
func addressGroups(svc *model.Service) []addressGroup {
	ports := len(svc.Ports)
	return []addressGroup{
		{clusterIP, "spec.clusterIPs", svc.ClusterIPs, 0},
		{loadBalancerIP, "status.loadBalancer.ingress", svc.LoadBalancerIPs, ports * (1 + len(svc.SourceRanges))},
		{externalIP, "spec.externalIPs", svc.ExternalIPs, ports},
	}
}

func hasFamily(svc *model.Service, f inet.Family) bool {
	return slices.ContainsFunc(svc.ClusterIPs, func(a netip.Addr) bool { return inet.FamilyOf(a) == f })
}

func frontendsAt(svc *model.Service, n *nodeContext, kind frontendKind, addr netip.Addr, field string) []frontend {
	list := make([]frontend, len(svc.Ports))
	for i, port := range svc.Ports {
		key := kernel.ServerKey{Addr: netip.AddrPortFrom(addr, port.Port), Protocol: port.Protocol}
		list[i] = frontend{
			key: key, kind: kind, port: i, ownAddress: n.own(addr),
			field: field, value: key.Addr.String() + "/" + key.Protocol.String(),
		}
		if kind == clusterIP {
			list[i].field = fmt.Sprintf("spec.ports[%d].port", i)
		}
	}
	return list
}

func nodePortFrontends(svc *model.Service, n *nodeContext) []frontend {
	var list []frontend
	for i, port := range svc.Ports {
		if port.NodePort == 0 {
			continue
		}
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
