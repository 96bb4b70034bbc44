package compile

import (
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Served is the part of a Service that this node serves. It is zero if the Service does not exist.
type Served struct {
	Service   *model.Service
	Frontends []ServedFrontend
	// Health is the health check port. Its Port is 0 if there is none.
	Health HealthPort
	// NoLocal lists the Local traffic policies for which this node has no endpoint, but other nodes do.
	NoLocal []NoLocal
	// Loopback lists the node ports at loopback addresses.
	Loopback []model.LoopbackPort
}

// ServedFrontend is a frontend that the Service has won, with the name of its port.
type ServedFrontend struct {
	Key  kernel.ServerKey
	Port string
}

// Served returns the part of a Service that this node serves.
func (c *Cluster) Served(id model.ServiceID) Served {
	s := c.services[id]
	if s == nil {
		return Served{}
	}
	served := Served{
		Service: s.service, Frontends: make([]ServedFrontend, 0, len(s.frontends)),
		Health: s.health, NoLocal: s.noLocal, Loopback: c.loopbackPorts(id, s),
	}
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

// sharesServer reports whether a port shares its virtual server with all other ports of the Service at the address.
func (s *Compiled) sharesServer(port kernel.ServerKey) bool {
	if len(s.allPorts) == 0 {
		return false
	}
	i, found := slices.BinarySearchFunc(s.fragment, port.AllPorts(), func(w want.Server, key kernel.ServerKey) int { return w.Key.Compare(key) })
	return found && s.fragment[i].Serves(port)
}

// loopbackPorts returns the node ports of a Service, each with its frontend at an address of the node. If no address of the node serves node
// ports in a family, it uses the ClusterIP's frontend. It omits node ports that another Service has won.
func (c *Cluster) loopbackPorts(id model.ServiceID, s *Compiled) []model.LoopbackPort {
	if !asksForNodePort(s.service) {
		return nil
	}
	var ports []model.LoopbackPort
	for _, group := range groupByPort(s.frontends) {
		p := s.service.Ports[group[0].port]
		if to := c.loopbackTarget(id, group); p.NodePort != 0 && to.IsValid() && !c.lostNodePort(id, group) && c.node.neededFor(p.Protocol, p.NodePort) == "" {
			ports = append(ports, model.LoopbackPort{Protocol: p.Protocol, Number: p.NodePort, To: to})
		}
	}
	return ports
}

func (c *Cluster) lostNodePort(id model.ServiceID, group []frontend) bool {
	asks := false
	for _, f := range group {
		if f.kind != nodePort {
			continue
		}
		if c.winner(f.key) == id {
			return false
		}
		asks = true
	}
	return asks
}

// Forwarded returns the virtual servers that a process forwards to the Service's endpoints: one for each port and family. This is the node
// port's if an address of the node serves it, and otherwise the ClusterIP's.
func (c *Cluster) Forwarded(id model.ServiceID) []*want.Server {
	s := c.services[id]
	if s == nil {
		return nil
	}
	var servers []*want.Server
	for _, group := range groupByPort(s.frontends) {
		key := kernel.ServerKey{Addr: c.loopbackTarget(id, group), Protocol: group[0].key.Protocol}
		if s := c.state.Servers[key]; s != nil && s.Owner.Service == id {
			servers = append(servers, s)
		}
	}
	return servers
}

// AtAddress is a virtual server that a process serves at the virtual server's own address.
type AtAddress struct {
	*want.Server
	NodePort bool
}

// AtAddresses returns the virtual servers of a Service that a process serves at their addresses. Their Members say which clients they admit.
func (c *Cluster) AtAddresses(id model.ServiceID) (all []AtAddress) {
	s := c.services[id]
	if s == nil {
		return nil
	}
	for _, f := range s.frontends {
		server := c.state.Servers[f.key]
		if server == nil || server.Owner.Service != id {
			continue
		}
		all = append(all, AtAddress{server, f.kind == nodePort})
	}
	return all
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
