package compile

import (
	"cmp"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// claim is a Service's wish for a place: the address, port and protocol of a virtual server.
type claim struct {
	service *model.Service
	kind    frontKind
	// bound says that the address is put on kube-ipvs0 for it.
	bound bool
}

// compare puts the better claim first (I12). What was given to one Service alone comes before what anybody may write into one:
// or an external IP, written in time, would take the ClusterIP or node port from the Service that gets it later.
func (c claim) compare(o claim) int {
	return cmp.Or(cmp.Compare(precedence[c.kind], precedence[o.kind]), c.service.Compare(o.service))
}

// precedence is by who gives the place away: the API server to one Service only, a load balancer's controller, or whoever writes
// the Service.
var precedence = map[frontKind]int{clusterIP: 1, nodePort: 2, loadBalancerIP: 3, externalIP: 4}
