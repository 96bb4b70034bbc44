package compile

import (
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Served is what this node serves of a Service, for whoever counts what goes through it.
type Served struct {
	// Service is nil where there is none.
	Service *model.Service
	Fronts  []ServedFront
}

// ServedFront is a place that a Service has for itself, with the name of its port.
type ServedFront struct {
	Key  kernel.ServerKey
	Port string
}

// sharesServer reports whether a port of the Service shares its virtual server with all others at the address.
func (c *compiled) sharesServer(port kernel.ServerKey) bool {
	return len(c.wide) > 0 && slices.ContainsFunc(c.fragment, func(s want.Server) bool {
		return s.Key == port.AllPorts() && s.Serves(port)
	})
}

// Served returns what is served of a Service. Places that another Service has the better claim to are not among them.
func (c *Cluster) Served(id model.ServiceID) Served {
	s := c.services[id]
	if s == nil {
		return Served{}
	}
	served := Served{Service: s.service, Fronts: make([]ServedFront, 0, len(s.fronts))}
	for _, f := range s.fronts {
		if c.winner(f.key) != id {
			continue
		}
		front := ServedFront{f.key, s.service.Ports[f.port].Name}
		if s.sharesServer(f.key) {
			front = ServedFront{Key: f.key.AllPorts()}
		}
		if front.Key.Addr.Port() == 0 && slices.Contains(served.Fronts, front) {
			continue // told with an earlier port
		}
		served.Fronts = append(served.Fronts, front)
	}
	return served
}
