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

// keys lists the virtual servers that a Service asks for, whether it gets them or not.
func keys(svc *model.Service, cfg Config) []kernel.ServerKey {
	var ks []kernel.ServerKey
	for _, ip := range svc.ClusterIPs {
		if !slices.Contains(cfg.Families, inet.FamilyOf(ip)) || cfg.reasonToRefuse(ip) != "" {
			continue
		}
		for _, port := range svc.Ports {
			ks = append(ks, kernel.ServerKey{Addr: netip.AddrPortFrom(ip, port.Port), Protocol: port.Protocol})
		}
	}
	return ks
}

// Service compiles one Service. Keys that another Service has the better claim to are left out, with a Problem.
func Service(svc *model.Service, cfg Config, winner func(kernel.ServerKey) model.ServiceID) (want.Fragment, []model.Problem) {
	problems := append(clusterIPProblems(svc, cfg), endpointProblems(svc)...)
	var fragment want.Fragment
	for _, ip := range svc.ClusterIPs {
		if !slices.Contains(cfg.Families, inet.FamilyOf(ip)) || cfg.reasonToRefuse(ip) != "" {
			continue
		}
		for i, port := range svc.Ports {
			key := kernel.ServerKey{Addr: netip.AddrPortFrom(ip, port.Port), Protocol: port.Protocol}
			if first := slices.IndexFunc(svc.Ports, samePort(port)); first < i {
				problems = append(problems, repeatedPort(svc, i, first))
				continue
			}
			if owner := winner(key); owner != svc.ID {
				problems = append(problems, claimProblem(svc, i, key, owner))
				continue
			}
			fragment = append(fragment, server(svc, port, key, cfg))
		}
	}
	slices.SortFunc(fragment, func(a, b want.Server) int { return a.Key.Compare(b.Key) })
	slices.SortFunc(problems, model.Problem.Compare)
	return fragment, slices.Compact(problems)
}

func samePort(p model.ServicePort) func(model.ServicePort) bool {
	return func(o model.ServicePort) bool { return o.Port == p.Port && o.Protocol == p.Protocol }
}

// server compiles one virtual server with all that hangs on it.
func server(svc *model.Service, port model.ServicePort, key kernel.ServerKey, cfg Config) want.Server {
	all := targets(svc, port, key.Family())
	chosen := choose(all)
	s := want.Server{
		Server:       serverConfig(svc, key, cfg),
		Destinations: destinations(chosen),
		Members:      []kernel.Member{vips.address(key.Addr.Addr())},
		Owner:        owner(svc, port),
	}
	// Without an endpoint the port is left out of the set, so that the filter refuses new connections at once. (IPVS would
	// refuse them too, with a line in the kernel log for every packet.)
	if len(chosen) > 0 {
		s.Members = append(s.Members, clusterIPs.port(key))
	}
	for _, t := range all {
		// Only a pod of this node can meet itself through this node's IPVS. An endpoint that is not chosen may still have
		// open connections.
		if t.endpoint.Node == cfg.Node || t.endpoint.Node == "" || cfg.Node == "" {
			s.Members = append(s.Members, hairpin.self(t.addr, port.Protocol))
		}
	}
	return s
}

func serverConfig(svc *model.Service, key kernel.ServerKey, cfg Config) kernel.Server {
	s := kernel.Server{Key: key, Scheduler: cfg.Scheduler, MaskBits: uint8(key.Family().Bits())}
	if svc.AffinityTimeout > 0 {
		s.Flags |= kernel.FlagPersistent
		s.Timeout = uint32(svc.AffinityTimeout.Seconds())
	}
	return s
}

func owner(svc *model.Service, port model.ServicePort) string {
	if port.Name == "" {
		return svc.ID.String()
	}
	return svc.ID.String() + ":" + port.Name
}

func clusterIPProblems(svc *model.Service, cfg Config) []model.Problem {
	var problems []model.Problem
	for i, ip := range svc.ClusterIPs {
		if reason := cfg.reasonToRefuse(ip); reason != "" {
			problems = append(problems, problem(svc, fmt.Sprintf("spec.clusterIPs[%d]", i), ip.String(),
				"this address is not served: it "+reason+"; want an address of the cluster's Service range"))
		}
	}
	return problems
}

func claimProblem(svc *model.Service, port int, key kernel.ServerKey, owner model.ServiceID) model.Problem {
	return problem(svc, fmt.Sprintf("spec.ports[%d].port", port), fmt.Sprintf("%s/%s", key.Addr, key.Protocol),
		"not served: Service "+owner.String()+" is older (or first by name) and claims the same address, port and protocol; "+
			"want an address or port of its own")
}

func repeatedPort(svc *model.Service, port, first int) model.Problem {
	p := svc.Ports[port]
	return problem(svc, fmt.Sprintf("spec.ports[%d].port", port), fmt.Sprintf("%d/%s", p.Port, p.Protocol),
		fmt.Sprintf("not served: spec.ports[%d] has the same port and protocol; want each of them once", first))
}

func problem(svc *model.Service, field, value, message string) model.Problem {
	return model.Problem{Object: "Service " + svc.ID.String(), Service: svc.ID, Field: field, Value: value, Message: message}
}
