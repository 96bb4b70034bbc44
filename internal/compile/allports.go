package compile

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// A virtual server with port 0 takes the packets to every port of its address that has no virtual server of its own, and keeps a
// client with one endpoint on all of them. It leaves ports as they are, so only Services whose ports equal their target ports can
// have one; and it knows no closed ports, so the sets of served ports keep them closed, and allPorts does for the node itself.
//
// Never at an address of the node's own: it would take the packets to every port of the machine.

// wideFronts are the places that a Service claims for one affinity of all its ports.
func wideFronts(svc *model.Service, list []front) []front {
	if !svc.Balancing.AllPorts || svc.AffinityTimeout == 0 {
		return nil
	}
	var wide []front
	for _, f := range list {
		if !f.own {
			wide = append(wide, front{key: f.key.AllPorts(), kind: f.kind, field: affinityPorts, value: "all"})
		}
	}
	return unique(wide)
}

const affinityPorts = "metadata.annotations[kube-ipvs.io/affinity-ports]"

// widen puts one virtual server in place of those of all ports at each of the wide fronts, where that is possible.
func (c *compiled) widen(winner func(kernel.ServerKey) model.ServiceID) {
	for _, f := range c.wide {
		var narrow, others want.Fragment
		for _, s := range c.fragment {
			if s.Key.AllPorts() == f.key {
				narrow = append(narrow, s)
			} else {
				others = append(others, s)
			}
		}
		owner := winner(f.key)
		refused := joinable(narrow)
		switch {
		case len(narrow) == 0: // all ports are lost to others, who are named
		case owner != c.service.ID:
			c.problems = append(c.problems, problem(c.service, affinityPorts, "all",
				fmt.Sprintf("no effect at %s: Service %s has one affinity for all %s ports there", f.key.Addr.Addr(), owner, f.key.Protocol),
				"use an address of its own"))
		case refused != nil:
			c.problems = append(c.problems, problem(c.service, affinityPorts, "all",
				fmt.Sprintf("no effect for %s over %s, where each port keeps its own affinity: %s", f.key.Protocol, f.key.Family(), refused.reason),
				refused.remedy))
		default:
			c.fragment = append(others, wideServer(f.key, narrow, c.service))
		}
	}
}

// joinable returns nil where one virtual server can take the place of several.
func joinable(narrow want.Fragment) *refusal {
	for _, s := range narrow {
		for _, d := range s.Destinations {
			if d.Addr.Port() != s.Key.Addr.Port() {
				return &refusal{
					fmt.Sprintf("port %d leads to port %d of %s", s.Key.Addr.Port(), d.Addr.Port(), d.Addr.Addr()),
					"use a targetPort equal to the port",
				}
			}
		}
		if !slices.Equal(anyPort(s.Destinations), anyPort(narrow[0].Destinations)) {
			return &refusal{
				fmt.Sprintf("ports %d and %d do not have the same endpoints", narrow[0].Key.Addr.Port(), s.Key.Addr.Port()),
				"use pods that all serve every port",
			}
		}
	}
	return nil
}

// anyPort are the destinations without their ports.
func anyPort(ds []kernel.Destination) []kernel.Destination {
	all := slices.Clone(ds)
	for i := range all {
		all[i].Addr = netip.AddrPortFrom(all[i].Addr.Addr(), 0)
	}
	return all
}

// wideServer is one virtual server that does what several do, each for its port.
func wideServer(key kernel.ServerKey, narrow want.Fragment, svc *model.Service) want.Server {
	wide := narrow[0]
	wide.Key, wide.Owner = key, model.ServicePortRef{Service: svc.ID}
	wide.Destinations = anyPort(wide.Destinations)
	wide.Members = nil
	for _, s := range narrow {
		wide.Ports = append(wide.Ports, s.Key.Addr.Port())
		for _, m := range s.Members {
			if m == limited.port(s.Key) {
				m = limited.port(key)
			}
			if !slices.Contains(wide.Members, m) {
				wide.Members = append(wide.Members, m)
			}
		}
	}
	slices.Sort(wide.Ports)
	// While no destination takes connections none of the ports leads anywhere, and IPVS itself refuses.
	if takesConnections(wide.Destinations) {
		wide.Members = append(wide.Members, allPorts.address(key.Addr.Addr()))
	}
	return wide
}
