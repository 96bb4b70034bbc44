package compile

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// An all-ports server has port 0. It receives the packets to all ports of its address that have no other virtual server, and sends all connections of
// a client to the same endpoint. It does not translate ports, so each port must equal its target port. The rules close the unserved ports of its
// address.
//
// An address of the node itself never has an all-ports server, because it would receive the packets to every port of
// the machine.

// allPortsFrontends returns the frontends of a Service's all-ports servers.
func allPortsFrontends(svc *model.Service, perPort []frontend, n *nodeContext) []frontend {
	if !svc.Balancing.AllPorts || svc.AffinityTimeout == 0 || lacks(n.Mode, "affinity-ports") {
		return nil
	}
	var all []frontend
	for _, f := range perPort {
		if !f.ownAddress {
			all = append(all, frontend{key: f.key.AllPorts(), kind: f.kind, field: affinityPorts, value: "all"})
		}
	}
	return unique(all)
}

const affinityPorts = "metadata.annotations[kube-ipvs.io/affinity-ports]"

// mergePorts replaces per-port virtual servers with an all-ports server where possible, and returns a Problem for each port that cannot be
// merged. It leaves the fragment unsorted.
func mergePorts(svc *model.Service, all []frontend, fragment want.Fragment, n *nodeContext, winner func(kernel.ServerKey) model.ServiceID) (
	merged want.Fragment, problems []model.Problem,
) {
	if len(all) == 0 {
		return fragment, nil
	}
	servers := map[kernel.ServerKey]want.Fragment{}
	for _, s := range fragment {
		servers[s.Key.AllPorts()] = append(servers[s.Key.AllPorts()], s)
	}
	for _, f := range all {
		perPort, owner := servers[f.key], winner(f.key)
		refused := checkMerge(perPort)
		switch {
		case len(perPort) == 0: // other Services have won every port
		case owner != svc.ID:
			problems = append(problems, problem(svc, affinityPorts, "all",
				fmt.Sprintf("no effect at %s: Service %s already has one affinity for all %s ports there, or uses port 21", f.key.Addr.Addr(), owner, f.key.Protocol),
				"use a different address"))
		case refused != nil:
			problems = append(problems, problem(svc, affinityPorts, "all",
				fmt.Sprintf("no effect for %s over %s: each port has its own affinity, because %s", f.key.Protocol, f.key.Family(), refused.reason),
				refused.remedy))
		default:
			servers[f.key] = want.Fragment{allPortsServer(f.key, perPort, svc, n)}
		}
	}
	return slices.Concat(slices.Collect(maps.Values(servers))...), problems
}

// checkMerge returns why virtual servers cannot be merged, or nil if they can.
func checkMerge(perPort want.Fragment) *refusal {
	for _, s := range perPort {
		for _, d := range s.Destinations {
			if d.Addr.Port() != s.Key.Addr.Port() {
				return &refusal{
					fmt.Sprintf("port %d maps to port %d of %s", s.Key.Addr.Port(), d.Addr.Port(), d.Addr.Addr()),
					"use a targetPort that equals the port",
				}
			}
		}
		if !slices.Equal(withoutPorts(s.Destinations), withoutPorts(perPort[0].Destinations)) {
			return &refusal{
				fmt.Sprintf("ports %d and %d have different endpoints", perPort[0].Key.Addr.Port(), s.Key.Addr.Port()),
				"use pods that serve every port",
			}
		}
	}
	return nil
}

func withoutPorts(ds []kernel.Destination) []kernel.Destination {
	all := slices.Clone(ds)
	for i := range all {
		all[i].Addr = netip.AddrPortFrom(all[i].Addr.Addr(), 0)
	}
	return all
}

func allPortsServer(key kernel.ServerKey, perPort want.Fragment, svc *model.Service, n *nodeContext) want.Server {
	merged := perPort[0]
	merged.Server, merged.Owner = serverConfig(svc, key, merged.Scheduler, n), model.ServicePortRef{Service: svc.ID}
	merged.Destinations = withoutPorts(merged.Destinations)
	merged.Members = nil
	for _, s := range perPort {
		merged.Ports = append(merged.Ports, s.Key.Addr.Port())
		for _, m := range s.Members {
			if m == limited.port(s.Key) {
				m = limited.port(key)
			}
			merged.Members = append(merged.Members, m)
		}
	}
	// If no destination accepts new connections, IPVS itself refuses packets to every port.
	if takesConnections(merged.Destinations) {
		merged.Members = append(merged.Members, allPorts.address(key.Addr.Addr()), guardedIPs.address(key.Addr.Addr()))
	}
	slices.Sort(merged.Ports)
	slices.SortFunc(merged.Members, kernel.Member.Compare)
	merged.Members = slices.Compact(merged.Members)
	return merged
}
