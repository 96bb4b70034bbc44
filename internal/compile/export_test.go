package compile

import (
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Fragment is what a Service asks of the kernel.
func (c *Cluster) Fragment(id model.ServiceID) want.Fragment { return c.services[id].fragment }
