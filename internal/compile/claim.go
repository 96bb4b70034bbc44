package compile

import (
	"cmp"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// claim is a Service's request for the address, port and protocol of a virtual server.
type claim struct {
	service *model.Service
	kind    frontendKind
	// bound is true if the claim binds the address to kube-ipvs0.
	bound bool
}

// claimant is the part of a claim that affects lower-ranked claims to the same frontend. The Problems of those claims
// name the claimant.
type claimant struct {
	ID   model.ServiceID
	kind frontendKind
}

func (c claim) claimant() claimant { return claimant{c.service.ID, c.kind} }

func (f frontend) claimOf(svc *model.Service) claim { return claim{svc, f.kind, !f.ownAddress} }

func insertClaim(claims []claim, c claim) []claim {
	i, _ := slices.BinarySearchFunc(claims, c, claim.compare)
	return slices.Insert(claims, i, c)
}

func removeClaim(claims []claim, c claim) []claim {
	i, found := slices.BinarySearchFunc(claims, c, claim.compare)
	if !found {
		return claims
	}
	return slices.Delete(claims, i, i+1)
}

// compare orders the better claim first (I12). An address that was allocated to one Service ranks above an address that any Service can name.
// Otherwise an early external IP would take a ClusterIP or node port that is later allocated to another Service.
func (c claim) compare(o claim) int {
	return cmp.Or(cmp.Compare(c.existence(), o.existence()), cmp.Compare(precedence[c.kind], precedence[o.kind]), c.service.Compare(o.service))
}

// existence ranks Services that are known to exist before all others.
func (c claim) existence() int {
	if c.service.Held {
		return 1
	}
	return 0
}

// precedence depends on who chose the address or port: the API server, a load balancer's controller, or the author of the Service. A health check
// port ranks below a node port, because connections work without health checks.
var precedence = map[frontendKind]int{clusterIP: 1, nodePort: 2, healthCheck: 3, loadBalancerIP: 4, externalIP: 5}

func balancersOf(claims []claim) (ids []model.ServiceID) {
	for _, c := range claims {
		if c.kind == loadBalancerIP {
			ids = append(ids, c.service.ID)
		}
	}
	return ids
}

// binds reports whether the winning claim binds the address. A claim to all ports does not count, because it is served only together with a per-port
// claim.
func binds(key kernel.ServerKey, claims []claim) bool {
	return len(claims) > 0 && claims[0].bound && key != key.AllPorts()
}
