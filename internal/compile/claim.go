package compile

import (
	"cmp"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// claim is a Service's request for the address, port and protocol of a virtual server.
type claim struct {
	service *model.Service
	kind    frontendKind
	// bound is true if the address is put on kube-ipvs0 for it.
	bound bool
}

// compare puts the better claim first (I12). An address that was allocated to one Service only comes before one that any Service can
// name: otherwise an external IP, written in time, would take a ClusterIP or node port from the Service that is allocated it later.
func (c claim) compare(o claim) int {
	return cmp.Or(cmp.Compare(c.existence(), o.existence()), cmp.Compare(precedence[c.kind], precedence[o.kind]), c.service.Compare(o.service))
}

// existence puts Services that certainly exist first.
func (c claim) existence() int {
	if c.service.Held {
		return 1
	}
	return 0
}

// precedence follows who allocates the address: the API server, a load balancer's controller, or the author of the Service.
var precedence = map[frontendKind]int{clusterIP: 1, nodePort: 2, loadBalancerIP: 3, externalIP: 4}
