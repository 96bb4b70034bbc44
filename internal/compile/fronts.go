package compile

import (
	"errors"
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

// maxExternal bounds what a Service asks for beyond its ClusterIPs and node ports: virtual servers, and entries for its source
// ranges. Addresses, ports and ranges multiply: an object that is small enough for the API server could else take the memory of
// every agent, and all places in the sets.
const maxExternal = 1 << 15

// fronts lists where a Service is to be reached on this node, each key once, and what in the Service cannot be.
func fronts(svc *model.Service, n *nodeContext) ([]front, []model.Problem) {
	var problems []model.Problem
	var all []front
	left := maxExternal
	for _, group := range addressGroups(svc) {
		for i, addr := range group.addrs {
			if !n.serves(inet.FamilyOf(addr)) || !hasFamily(svc, inet.FamilyOf(addr)) || n.excluded(addr) {
				continue
			}
			field := fmt.Sprintf("%s[%d]", group.field, i)
			serve, remark := n.judge(group.kind, addr)
			if serve && left < group.cost {
				serve, remark = false, &tooMany
			}
			if remark != nil {
				problems = append(problems, problem(svc, field, addr.String(), remark.reason, remark.remedy))
			}
			if serve {
				left -= group.cost
				all = append(all, frontsAt(svc, n, group.kind, addr, field)...)
			}
		}
	}
	all = append(all, nodePortFronts(svc, n)...)
	return unique(all), problems
}

// tooMany is what is said of an address that would go beyond maxExternal.
var tooMany = refusal{
	fmt.Sprintf("this address is not served: the Service asks for more than %d virtual servers and source ranges in all", maxExternal),
	"use fewer addresses, ports or ranges, or several Services",
}

// judge says whether an address of a Service is served on this node. The remark is what its owner should know; mostly nil.
func (n *nodeContext) judge(kind frontKind, addr netip.Addr) (serve bool, remark *refusal) {
	if kind == externalIP && n.ExternalIPs.Off {
		return false, &refusal{
			"this address is not served: this cluster's configuration serves no external IPs",
			"use a Service of type LoadBalancer or NodePort",
		}
	}
	if err := n.checkFrontend(kind, addr); err != nil {
		return false, &refusal{fmt.Sprintf("this address is not served: it %v", err), "use " + fitAddress[kind]}
	}
	theirs := n.otherNodes[addr]
	switch {
	case theirs == "" || n.own(addr):
		return true, nil
	case kind == clusterIP:
		// Whoever runs a node may write any address into its Node object: that takes no ClusterIP from the cluster.
		return true, &refusal{
			"is served, but the Node object " + theirs + " has this address, too, and cannot be reached at it",
			"use " + fitAddress[kind],
		}
	}
	return false, nil // the other node serves it: bound here, this node could not reach that one any more
}

// addressGroup is a list of addresses in a Service.
type addressGroup struct {
	kind  frontKind
	field string
	addrs []netip.Addr
	// cost is what each address takes of maxExternal.
	cost int
}

// addressGroups are in the order in which they win when a Service names an address twice: what restricts clients comes before
// what does not.
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

func frontsAt(svc *model.Service, n *nodeContext, kind frontKind, addr netip.Addr, field string) []front {
	list := make([]front, len(svc.Ports))
	for i, port := range svc.Ports {
		key := kernel.ServerKey{Addr: netip.AddrPortFrom(addr, port.Port), Protocol: port.Protocol}
		list[i] = front{key: key, kind: kind, port: i, own: kind != clusterIP && n.own(addr), field: field, value: key.Addr.String() + "/" + key.Protocol.String()}
		if kind == clusterIP {
			list[i].field = fmt.Sprintf("spec.ports[%d].port", i)
		}
	}
	return list
}

func nodePortFronts(svc *model.Service, n *nodeContext) []front {
	var list []front
	for i, port := range svc.Ports {
		if port.NodePort == 0 {
			continue
		}
		for _, f := range n.Families {
			if !hasFamily(svc, f) {
				continue
			}
			for _, addr := range n.nodePortAddresses(f) {
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

// checkFrontend returns an error for an address that no Service can have on this node. The error says what the address is.
func (n *nodeContext) checkFrontend(kind frontKind, a netip.Addr) error {
	if err := inet.CheckUnicast(a); err != nil {
		return err
	}
	what, ofNetwork := n.Network[a]
	switch {
	case kind == clusterIP && n.own(a):
		return errors.New("is an address of this node, whose own ports would be closed on it")
	case ofNetwork && (kind == clusterIP || n.otherNodes[a] == "" && !n.own(a)):
		return fmt.Errorf("is %s, which this node could not reach any more", what)
	case kind == clusterIP:
		return nil // the agent may well reach the API server through its Service
	case a == n.APIServer && n.otherNodes[a] == "" && !n.own(a):
		return errors.New("is that of the API server, which this node could not reach any more")
	case kind == externalIP && len(n.ExternalIPs.Allowed) > 0 && !within(n.ExternalIPs.Allowed, a):
		return fmt.Errorf("is not in the ranges that this cluster allows for external IPs, %v", n.ExternalIPs.Allowed)
	}
	return nil
}

var fitAddress = map[frontKind]string{
	clusterIP:      "an address of the cluster's Service range",
	loadBalancerIP: "the address of a load balancer",
	externalIP:     "a unicast address that is routed to the nodes",
}
