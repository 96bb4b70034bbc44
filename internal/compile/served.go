package compile

import (
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Served is what this node serves of a Service: the objects in traffic metrics.
type Served struct {
	// Service is nil if it does not exist.
	Service   *model.Service
	Frontends []ServedFrontend
}

// ServedFrontend is a frontend that the Service has won, with the name of its port.
type ServedFrontend struct {
	Key  kernel.ServerKey
	Port string
}

// Served returns the served part of a Service, without frontends on which another Service has precedence.
func (c *Cluster) Served(id model.ServiceID) Served {
	s := c.services[id]
	if s == nil {
		return Served{}
	}
	served := Served{Service: s.service, Frontends: make([]ServedFrontend, 0, len(s.frontends))}
	shared := map[kernel.ServerKey]struct{}{}
	for _, f := range s.frontends {
		if c.winner(f.key) != id {
			continue
		}
		frontend := ServedFrontend{f.key, s.service.Ports[f.port].Name}
		if s.sharesServer(f.key) {
			frontend = ServedFrontend{Key: f.key.AllPorts()}
			if _, added := shared[frontend.Key]; added {
				continue
			}
			shared[frontend.Key] = struct{}{}
		}
		served.Frontends = append(served.Frontends, frontend)
	}
	return served
}

// sharesServer reports whether a port of the Service shares its virtual server with all other ports at the address.
func (c *compiled) sharesServer(port kernel.ServerKey) bool {
	if len(c.allPorts) == 0 {
		return false
	}
	i, found := slices.BinarySearchFunc(c.fragment, port.AllPorts(), func(s want.Server, key kernel.ServerKey) int { return s.Key.Compare(key) })
	return found && c.fragment[i].Serves(port)
}

// LoopbackPort is a node port of a Service in one family, and the frontend to which the agent forwards its loopback connections.
type LoopbackPort struct {
	Protocol inet.Protocol
	Number   uint16
	To       netip.AddrPort
}

// LoopbackPorts returns the node ports of a Service, each with its frontend at an address of the node. If no address of the node serves node
// ports in a family, it uses the ClusterIP's frontend.
func (c *Cluster) LoopbackPorts(id model.ServiceID) []LoopbackPort {
	s := c.services[id]
	if s == nil || s.service == nil {
		return nil
	}
	if !asksForNodePort(s.service) {
		return nil
	}
	var ports []LoopbackPort
	for _, group := range groupByPort(s.frontends) {
		p := s.service.Ports[group[0].port]
		if to := c.loopbackTarget(id, group); p.NodePort != 0 && to.IsValid() && c.node.neededFor(p.Protocol, p.NodePort) == "" {
			ports = append(ports, LoopbackPort{p.Protocol, p.NodePort, to})
		}
	}
	return ports
}

func (c *Cluster) loopbackTarget(id model.ServiceID, group []frontend) (target netip.AddrPort) {
	for _, f := range group {
		if f.kind != nodePort && f.kind != clusterIP || c.winner(f.key) != id {
			continue
		}
		if target = f.key.Addr; f.kind == nodePort {
			return target
		}
	}
	return target
}
