package compile

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// This file decides which frontends a Service must not have on this node (I17).

// objection is the reason why a Service should not have a frontend on this node.
type objection struct {
	refusal
	force force
	value string
}

type force uint8

const (
	// refuses excludes a frontend, even if it is already served.
	refuses force = iota
	// yields excludes a new frontend. A frontend that is already served stays, because neither a Node object nor a listening process may
	// remove it.
	yields
	// warns admits the frontend, with a Problem.
	warns
	// leaves excludes a new frontend without a Problem, because another node serves it.
	leaves
)

// admit drops the frontends at one address that a Service cannot have on this node, and returns the reasons.
func (n *nodeContext) admit(svc *model.Service, list []frontend, field string) (admitted []frontend, problems []model.Problem) {
	for _, f := range list {
		o, served := n.admits(svc, f)
		if served {
			admitted = append(admitted, f)
		}
		switch {
		case o == nil || o.force == leaves && !served:
		case served:
			problems = append(problems, problem(svc, field, o.value, "served, but "+o.reason, o.remedy))
		default:
			problems = append(problems, problem(svc, field, o.value, "not served: "+o.reason, o.remedy))
		}
	}
	return admitted, slices.Compact(problems)
}

// admits reports whether a Service can have a frontend on this node, and returns the objection if any.
func (n *nodeContext) admits(svc *model.Service, f frontend) (*objection, bool) {
	o := n.objectionTo(svc, f)
	if o == nil && f.kind == externalIP {
		o = n.objectionToNewVersion(f)
	}
	return o, o == nil || o.force == warns || o.force >= yields && n.served(svc, f)
}

// served reports whether a frontend is in the kernel. An earlier agent may have left it there. A load balancer may take over the frontend of an
// external IP. The reverse is allowed only within one Service, because an external IP must not take over the address of another Service's load
// balancer.
func (n *nodeContext) served(svc *model.Service, f frontend) bool {
	claims := n.claims[f.key]
	if f.kind == externalIP && slices.ContainsFunc(claims, func(c claim) bool { return c.kind == loadBalancerIP && c.service.ID != svc.ID }) {
		return false
	}
	_, left := n.left[f.frontendKey()]
	return left || slices.ContainsFunc(claims, func(c claim) bool { return c.kind != nodePort && (c.kind == clusterIP) == (f.kind == clusterIP) })
}

func (n *nodeContext) objectionTo(svc *model.Service, f frontend) *objection {
	a := f.key.Addr.Addr()
	if refused := n.checkServiceAddress(f.kind, a); refused != nil {
		return &objection{*refused, refuses, a.String()}
	}
	switch {
	case n.own(a) && f.kind == clusterIP:
		return n.objectionToOwnClusterIP(svc, f)
	case n.own(a):
		return n.objectionAtOwnAddress(svc, f)
	case slices.Contains(n.primaries, a): // a public address in a cloud, not on any interface
		return n.objectionForNode(f)
	}
	if name := n.otherNodes[a]; name != "" {
		return n.objectionAtOtherNode(svc, f, name)
	}
	if o := n.objectionInOwnSubnet(f); o != nil {
		return o
	}
	if name := n.nodeOfPod(a); name != "" && f.kind == loadBalancerIP {
		return &objection{refusal{"the address is in the pod range of node " + name + ", so a pod with this address is unreachable",
			"use " + validAddress[f.kind]}, yields, a.String()}
	}
	return nil
}

// objectionAtOtherNode handles an address in another node's Node object. Anyone who controls a node can write any address into its Node
// object. If the address were bound here, this node could not reach the other node.
func (n *nodeContext) objectionAtOtherNode(svc *model.Service, f frontend, name string) *objection {
	o := &objection{
		refusal{"the Node object " + name + " also has this address, so this node cannot use it to reach that node", "use " + validAddress[f.kind]},
		yields, f.key.Addr.Addr().String(),
	}
	role, ofNetwork := n.networkNeeds(f.kind, f.key.Addr.Addr())
	switch {
	case f.kind == clusterIP:
		o.force = warns
	case n.served(svc, f) && n.apiServer.has(f.key.Addr.Addr()): // a Service may claim the address before the node joins
		o.force, o.reason = refuses, "the address is the API server's, on node "+name+", which this node could no longer reach"
	case n.served(svc, f) && ofNetwork:
		o.force, o.reason = refuses, fmt.Sprintf("the address is %s, on node %s, which this node could no longer reach", role, name)
	case n.served(svc, f):
	case slices.ContainsFunc(slices.Concat(svc.LoadBalancerIPs, svc.ExternalIPs), n.own):
		o.force = leaves // the Service lists nodes, each of which serves it at its own address
	default:
		o.reason = "the Node object " + name + " has this address; if it were served here, this node could not reach that node"
		o.remedy = "no action is needed if that node serves the Service; otherwise use " + validAddress[f.kind]
	}
	return o
}

// objectionInOwnSubnet handles an external IP in this node's networks, where any host may have the address. If the address were served, this node
// could not reach that host, and the kernel would refuse routes through it, even if it became the gateway. Load balancer addresses are chosen by a
// controller, so they may be in the node's networks.
func (n *nodeContext) objectionInOwnSubnet(f frontend) *objection {
	a := f.key.Addr.Addr()
	if f.kind != externalIP || within(n.ExternalIPs.Allowed, a) {
		return nil
	}
	for _, subnet := range n.subnets {
		if subnet.Contains(a) {
			return &objection{refusal{
				fmt.Sprintf("the address is in this node's network %s, where a gateway or another host may need it", subnet),
				"use " + validAddress[f.kind] + ", or add a range that contains this one to externalIPs.ranges",
			}, yields, a.String()}
		}
	}
	return nil
}

// objectionToOwnClusterIP handles a ClusterIP that is also on an interface of this node. If the ClusterIP is new, the cluster's ranges overlap. If an
// interface gets the address of a served ClusterIP, the ClusterIP stays. It is then served like an external IP of this node, without kube-ipvs0.
func (n *nodeContext) objectionToOwnClusterIP(svc *model.Service, f frontend) *objection {
	a := f.key.Addr.Addr().String()
	if n.served(svc, f) {
		return &objection{refusal{
			"another interface of this node also has the address, so processes of the node answer on other ports of the address",
			"remove it from that interface (ip addr show to " + a + ")",
		}, warns, a}
	}
	return &objection{refusal{
		"the address belongs to this node, and the node's own ports there would be closed", "use " + validAddress[clusterIP],
	}, refuses, a}
}

// objectionAtOwnAddress handles a port at this node's own address. If it were served, its traffic would go to the
// Service instead of the node.
func (n *nodeContext) objectionAtOwnAddress(svc *model.Service, f frontend) *objection {
	if o := n.objectionForNode(f); o != nil {
		return o
	}
	switch {
	case !n.isNewAtNode(svc, f):
		return nil
	case n.LocalPorts.Contain(f.key.Addr.Port()):
		return &objection{refusal{"this node's own connections may use the port as their source port, and replies to them would go to the Service",
			otherPort + ", or add the port to the sysctl net.ipv4.ip_local_reserved_ports and restart the agent"}, yields, f.value}
	case n.listeners == nil:
		return &objection{refusal{"the agent does not know yet which ports the processes of this node listen on", "wait; the agent retries"}, yields, f.value}
	case n.listeners.At(f.key):
		return &objection{refusal{"a process on this node already listens on this port at the node's address", otherPort + ", or stop the process"}, yields, f.value}
	}
	return nil
}

// isNewAtNode reports whether a frontend is an external IP of this node that is not served yet.
func (n *nodeContext) isNewAtNode(svc *model.Service, f frontend) bool {
	return f.kind == externalIP && n.own(f.key.Addr.Addr()) && n.ExternalIPs.AtNode != AtNodeAll && !n.served(svc, f)
}

// needsListeners reports whether the decision to serve a frontend depends only on the sockets of the node's processes.
func (n *nodeContext) needsListeners(svc *model.Service, f frontend) bool {
	return n.isNewAtNode(svc, f) && !n.LocalPorts.Contain(f.key.Addr.Port()) &&
		n.checkServiceAddress(f.kind, f.key.Addr.Addr()) == nil && n.objectionForNode(f) == nil
}

const otherPort = "use another port or another address"

func (n *nodeContext) objectionForNode(f frontend) *objection {
	use := n.nodePortUse(f)
	if use == "" {
		return nil
	}
	return &objection{refusal{"this node needs the port at its own address for " + use, otherPort}, refuses, f.value}
}

// nodePortUse names the program that needs a port at this node's own address. The result is empty if there is none. A controller may add a load
// balancer's address to an interface of the node that announces it. Ports at such an address are refused only if the Node object also has the
// address.
func (n *nodeContext) nodePortUse(f frontend) string {
	switch {
	case f.key.Protocol != inet.TCP || f.kind == clusterIP || n.ExternalIPs.AtNode == AtNodeAll:
		return ""
	case f.kind == loadBalancerIP && !slices.Contains(n.primaries, f.key.Addr.Addr()):
		return ""
	case slices.Contains(n.AgentPorts, f.key.Addr.Port()):
		return "the agent's health checks and metrics"
	case n.apiServer.at(f.key.Addr):
		return "the API server"
	}
	return nodePortUses[f.key.Addr.Port()]
}

// nodePortUses lists the ports that a node or its cluster cannot work without. They are refused even if no process listens, because the process may
// just be restarting.
var nodePortUses = map[uint16]string{
	22:    "ssh",
	2379:  "etcd",
	2380:  "etcd",
	6443:  "the API server",
	10250: "the kubelet",
	10256: "the health checks of kube-ipvs or kube-proxy",
	10257: "the controller manager",
	10259: "the scheduler",
}

// networkNeeds returns why this node needs an address, such as its gateway's, and whether a Service must therefore not have it. A nameserver may be
// a Service of this cluster, and no tenant can choose its ClusterIP or load balancer address.
func (n *nodeContext) networkNeeds(kind frontendKind, a netip.Addr) (kernel.NetworkRole, bool) {
	role, needed := n.network[a]
	return role, needed && (role.Kind != kernel.Nameserver || kind == externalIP)
}

// checkServiceAddress returns why a Service cannot have an address on this node, or nil if it can.
func (n *nodeContext) checkServiceAddress(kind frontendKind, a netip.Addr) *refusal {
	if kind == externalIP {
		if refused := n.withoutExternalIPs(); refused != nil {
			return refused
		}
	}
	reject := func(format string, args ...any) *refusal {
		return &refusal{fmt.Sprintf("the address "+format, args...), "use " + validAddress[kind]}
	}
	if err := inet.CheckUnicast(a); err != nil {
		return reject("%v", err)
	}
	role, ofNetwork := n.networkNeeds(kind, a)
	noNode := n.otherNodes[a] == "" && !n.own(a)
	switch {
	case ofNetwork && (kind == clusterIP || noNode):
		return reject("is %s, which this node could no longer reach", role)
	case kind == clusterIP:
		return nil // the agent may reach the API server through its Service
	case n.apiServer.has(a) && noNode:
		return reject("is an address of the API server, which this node could no longer reach")
	}
	if kind == externalIP {
		return n.checkExternalIP(a, reject)
	}
	return nil
}

// checkExternalIP returns why an external IP is refused, or nil if it is not.
func (n *nodeContext) checkExternalIP(a netip.Addr, reject func(string, ...any) *refusal) *refusal {
	switch {
	case !n.ExternalIPs.allow(a):
		return reject("is outside the ranges that this cluster allows for external IPs, %v", n.ExternalIPs.Allowed)
	case n.ExternalIPs.AtNode == AtNodeNone && (n.own(a) || slices.Contains(n.primaries, a)):
		return reject("is this node's own, and this cluster allows no external IPs there")
	case n.own(a):
		return nil
	}
	if name := n.nodeOfPod(a); name != "" {
		return reject("is in the pod range of node %s; if it were served, a pod with this address would be unreachable", name)
	}
	return nil
}

var validAddress = map[frontendKind]string{
	clusterIP:      "an address of the cluster's Service range",
	loadBalancerIP: "the address of a load balancer",
	externalIP:     "a unicast address that is routed to the nodes",
}
