package compile

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// This file decides which node ports and which health check port a Service can have (I17), and which frontends affect more than their own port. The
// API server allocates node ports from one range, so they rarely collide with ports that the node needs. Manifests and API servers with an unusual
// range may name any port.

// neededFor names the program for which the node needs a port at any of its addresses. The result is empty if there is none. A node port is refused
// at all addresses if the node needs it at one of them.
func (n *nodeContext) neededFor(protocol inet.Protocol, port uint16) string {
	at := func(a netip.Addr) string {
		return n.nodePortUse(frontend{kind: nodePort, key: kernel.ServerKey{Addr: netip.AddrPortFrom(a, port), Protocol: protocol}})
	}
	if use := at(everywhere); use != "" {
		return use
	}
	for _, a := range n.addresses {
		if use := at(a); use != "" {
			return use
		}
	}
	return ""
}

func (n *nodeContext) admitNodePorts(svc *model.Service, ports []int) (admitted []int, problems []model.Problem) {
	for _, i := range ports {
		p := svc.Ports[i]
		if p.NodePort == 0 {
			continue
		}
		if use := n.neededFor(p.Protocol, p.NodePort); use != "" {
			problems = append(problems, problem(svc, fmt.Sprintf("spec.ports[%d].nodePort", i), fmt.Sprintf("%d/%s", p.NodePort, p.Protocol),
				"not served: this node needs the port at its own addresses for "+use, "use another node port"))
			continue
		}
		admitted = append(admitted, i)
	}
	return admitted, problems
}

// everywhere is used as the address in claims to a port at all addresses of the node. No Service can have this address.
var everywhere = netip.IPv4Unspecified()

func nodeWide(port uint16) kernel.ServerKey {
	return kernel.ServerKey{Addr: netip.AddrPortFrom(everywhere, port), Protocol: inet.TCP}
}

// nodeWideClaims lists a Service's claims to TCP ports at all addresses of the node: its node ports and its health check port. Connections to a
// node port never reach the agent's socket, so one port number cannot serve both purposes. admitNodePorts reports the refused node ports.
func (n *nodeContext) nodeWideClaims(svc *model.Service) (all []frontend, problems []model.Problem) {
	for i, p := range svc.Ports[:min(len(svc.Ports), n.bounds.ports)] {
		if p.NodePort != 0 && p.Protocol == inet.TCP && n.neededFor(inet.TCP, p.NodePort) == "" {
			all = append(all, frontend{key: nodeWide(p.NodePort), kind: nodePort, port: i, ownAddress: true})
		}
	}
	if svc.HealthCheckPort == 0 {
		return all, nil
	}
	if use := n.neededFor(inet.TCP, svc.HealthCheckPort); use != "" {
		return all, []model.Problem{noHealthChecks(svc, "this node needs the port at its own addresses for "+use)}
	}
	return append(all, frontend{key: nodeWide(svc.HealthCheckPort), kind: healthCheck, ownAddress: true}), nil
}

func noHealthChecks(svc *model.Service, reason string) model.Problem {
	return problem(svc, "spec.healthCheckNodePort", fmt.Sprint(svc.HealthCheckPort),
		"the agent does not answer health checks of the Service: "+reason, "use another port")
}

const ftp = 21

// isFTP reports whether IPVS treats a virtual server as an FTP server. If so, IPVS also uses it for packets to port 20, and to ports from 1024 up
// that have no virtual server at the address. An all-ports server would not get these packets. With affinity, the FTP server would capture them, even
// those for the node's own programs, and share client records with the all-ports server.
func (n *nodeContext) isFTP(key kernel.ServerKey) bool {
	return n.Mode.DataPlane() == kernel.DataPlaneIPVS && key.Protocol == inet.TCP && key.Addr.Port() == ftp
}

// wider returns the additional frontend that a frontend captures, if any. An FTP frontend captures every port of its address, so only one Service at
// that address may have affinity. A frontend at one of the node's addresses also captures the health check port with the same number, which
// the API server may allocate later.
func (n *nodeContext) wider(key kernel.ServerKey, kind frontendKind, bound bool) (wide kernel.ServerKey, exists bool) {
	switch {
	case bound && n.isFTP(key):
		return key.AllPorts(), true
	case !bound && key.Protocol == inet.TCP && (kind == loadBalancerIP || kind == externalIP):
		return nodeWide(key.Addr.Port()), true
	}
	return kernel.ServerKey{}, false
}

// widerClaims lists a Service's claims to ports that its frontends capture besides their own.
func (n *nodeContext) widerClaims(list []frontend) (all []frontend) {
	for _, f := range list {
		if wide, exists := n.wider(f.key, f.kind, !f.ownAddress); exists {
			all = append(all, frontend{key: wide, kind: f.kind, port: f.port, ownAddress: f.ownAddress})
		}
	}
	return unique(all)
}

// withoutAffinity returns the Problem of a port that has no affinity although its Service requests affinity.
func (n *nodeContext) withoutAffinity(svc *model.Service, fragment want.Fragment) []model.Problem {
	if svc.AffinityTimeout == 0 || !slices.ContainsFunc(fragment, func(s want.Server) bool { return n.isFTP(s.Key) }) {
		return nil
	}
	return []model.Problem{problem(svc, "spec.sessionAffinity", fmt.Sprintf("%d/%s", ftp, inet.TCP),
		"session affinity is not applied to this port: with affinity, IPVS would also send traffic for other ports of the address to this Service", "use another port")}
}
