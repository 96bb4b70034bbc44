package compile

import (
	"fmt"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// This file decides about frontends that affect more than their own port.

const ftp = 21

// isFTP reports whether IPVS treats a virtual server as one of FTP. It then finds this virtual server for packets to port 20 and to all ports
// from 1024 up of the address that have none, before an all-ports server. With affinity, it would take them, also from the node's own
// programs, and share the records of clients with an all-ports server.
func (n *nodeContext) isFTP(key kernel.ServerKey) bool {
	return !n.Mode.NFTablesBalances() && key.Protocol == inet.TCP && key.Addr.Port() == ftp
}

// wider returns what a frontend takes beyond its own port, if anything. For one of FTP that is every port of the address, of which only one
// Service may have an affinity; for a port at an address of the node, the port of health checks, which an API server may allocate later.
func (n *nodeContext) wider(key kernel.ServerKey, kind frontendKind, bound bool) (wide kernel.ServerKey, exists bool) {
	switch {
	case bound && n.isFTP(key):
		return key.AllPorts(), true
	case !bound && key.Protocol == inet.TCP && (kind == loadBalancerIP || kind == externalIP):
		return nodeWide(key.Addr.Port()), true
	}
	return kernel.ServerKey{}, false
}

// widerClaims lists the claims of a Service to what its frontends take beyond their own ports.
func (n *nodeContext) widerClaims(list []frontend) (all []frontend) {
	for _, f := range list {
		if wide, exists := n.wider(f.key, f.kind, !f.ownAddress); exists {
			all = append(all, frontend{key: wide, kind: f.kind, port: f.port, ownAddress: f.ownAddress})
		}
	}
	return unique(all)
}

// withoutAffinity says that a Service with affinity has none at a port.
func (n *nodeContext) withoutAffinity(svc *model.Service, fragment want.Fragment) []model.Problem {
	if svc.AffinityTimeout == 0 || !slices.ContainsFunc(fragment, func(s want.Server) bool { return n.isFTP(s.Key) }) {
		return nil
	}
	return []model.Problem{problem(svc, "spec.sessionAffinity", fmt.Sprintf("%d/%s", ftp, inet.TCP),
		"clients of this port have no affinity: with it, IPVS would send other ports of the address to the Service, too", "use another port")}
}
