package compile

import (
	"net/netip"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Remembered counts what a cluster knows across its Services.
func (c *Cluster) Remembered() int {
	v := c.node.virtual
	return len(c.claims) + len(v.places) + len(v.flipped) + len(v.ranges)
}

// NearEndpoint says whether all endpoints are searched when the address becomes or ceases to be virtual.
func (c *Cluster) NearEndpoint(a netip.Addr) bool { return c.node.virtual.nearEndpoint(a) }

// Fragment is what a Service asks of the kernel.
func (c *Cluster) Fragment(id model.ServiceID) want.Fragment { return c.services[id].fragment }
