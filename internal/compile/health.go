package compile

import (
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// HealthPort is the port that load balancers probe to decide whether to send a Service's clients to this node.
type HealthPort struct {
	Port uint16
	// Local is the number of ready endpoints on this node.
	Local int
}

// healthPort counts the distinct ready addresses on this node that are not drained. A pod of a dual-stack Service has two addresses, so
// only the family with more addresses is counted.
func healthPort(svc *model.Service, n *nodeContext, refused refusals) HealthPort {
	here := map[inet.Family]map[netip.Addr]struct{}{}
	for _, slice := range svc.Slices {
		if !n.serves(slice.Family) || !hasFamily(svc, slice.Family) || len(slice.Ports) == 0 {
			continue
		}
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			if !isOn(e, n.NodeName) || !e.Ready || refused[e.Addr] != nil || n.weight(svc, e) == 0 {
				continue
			}
			if here[slice.Family] == nil {
				here[slice.Family] = map[netip.Addr]struct{}{}
			}
			here[slice.Family][e.Addr] = struct{}{}
		}
	}
	return HealthPort{Port: svc.HealthCheckPort, Local: max(len(here[inet.IPv4]), len(here[inet.IPv6]))}
}

// wonHealthPort returns the health check port if the Service has the best claim to it, and otherwise a Problem.
func wonHealthPort(svc *model.Service, wide []frontend, n *nodeContext, refused refusals) (HealthPort, []model.Problem) {
	i := slices.IndexFunc(wide, func(f frontend) bool { return f.kind == healthCheck })
	if i < 0 {
		return HealthPort{}, nil
	}
	best, reason := n.claims[wide[i].key][0], ""
	switch ours := best.service.ID == svc.ID; {
	case best.kind == healthCheck && ours:
		return healthPort(svc, n, refused), nil
	case best.kind == healthCheck:
		reason = "Service " + best.service.ID.String() +
			" has the better claim to the same healthCheckNodePort (the older Service, or the first by name)"
	case ours:
		reason = "the port is also its node port"
	default:
		reason = "the port is a node port of Service " + best.service.ID.String()
	}
	return HealthPort{}, []model.Problem{noHealthChecks(svc, reason)}
}

// withHealthPort adds the health check port's set entries to the Service's first virtual server: one for each address at which node ports
// are served.
func withHealthPort(fragment want.Fragment, health HealthPort, n *nodeContext) want.Fragment {
	if health.Port == 0 || len(fragment) == 0 {
		return fragment
	}
	for _, f := range n.Families {
		for _, addr := range n.nodePortAddresses(f) {
			key := kernel.ServerKey{Addr: netip.AddrPortFrom(addr, health.Port), Protocol: inet.TCP}
			fragment[0].Members = append(fragment[0].Members, healthPorts.port(key))
		}
	}
	return fragment
}
