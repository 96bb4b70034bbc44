package compile

import (
	"slices"

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
	for _, f := range s.frontends {
		if c.winner(f.key) != id {
			continue
		}
		frontend := ServedFrontend{f.key, s.service.Ports[f.port].Name}
		if s.sharesServer(f.key) {
			frontend = ServedFrontend{Key: f.key.AllPorts()}
		}
		if frontend.Key.Addr.Port() == 0 && slices.Contains(served.Frontends, frontend) {
			continue // added with an earlier port
		}
		served.Frontends = append(served.Frontends, frontend)
	}
	return served
}

// sharesServer reports whether a port of the Service shares its virtual server with all other ports at the address.
func (c *compiled) sharesServer(port kernel.ServerKey) bool {
	return len(c.allPorts) > 0 && slices.ContainsFunc(c.fragment, func(s want.Server) bool {
		return s.Key == port.AllPorts() && s.Serves(port)
	})
}
