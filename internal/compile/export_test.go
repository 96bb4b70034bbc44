package compile

import (
	"net/netip"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Remembered counts a cluster's state across its Services.
func (c *Cluster) Remembered() int {
	v := c.node.virtual
	return len(c.node.claims) + len(v.frontends) + len(v.changed) + len(v.endpoints)
}

// EndpointsAt counts the endpoints at an address.
func (c *Cluster) EndpointsAt(a netip.Addr) int { return c.node.virtual.endpoints[a] }

// Fragment is a Service's part of the wanted state.
func (c *Cluster) Fragment(id model.ServiceID) want.Fragment { return c.services[id].fragment }
