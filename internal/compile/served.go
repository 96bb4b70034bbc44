package compile

import (
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Served is what this node serves of a Service: the objects whose traffic metrics count.
type Served struct {
	// Service is nil if there is none.
	Service *model.Service
	Fronts  []ServedFront
}

// ServedFront is a frontend that the Service has won, with the name of its port.
type ServedFront struct {
	Key  kernel.ServerKey
	Port string
}

// Served returns what is served of a Service, without frontends that another Service has the better claim to.
func (c *Cluster) Served(id model.ServiceID) Served {
	s := c.services[id]
	if s == nil {
		return Served{}
	}
	served := Served{Service: s.service, Fronts: make([]ServedFront, 0, len(s.frontends))}
	for _, f := range s.frontends {
		if c.winner(f.key) != id {
			continue
		}
		front := ServedFront{f.key, s.service.Ports[f.port].Name}
		if s.sharesServer(f.key) {
			front = ServedFront{Key: f.key.AllPorts()}
		}
		if front.Key.Addr.Port() == 0 && slices.Contains(served.Fronts, front) {
			continue // added with an earlier port
		}
		served.Fronts = append(served.Fronts, front)
	}
	return served
}

// sharesServer is true if a port of the Service shares its virtual server with all other ports at the address.
func (c *compiled) sharesServer(port kernel.ServerKey) bool {
	return len(c.allPorts) > 0 && slices.ContainsFunc(c.fragment, func(s want.Server) bool {
		return s.Key == port.AllPorts() && s.Serves(port)
	})
}
