package compile

import (
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Compiled is one compiled Service. It is immutable, and a change to the Service or its inputs creates a new value. Any goroutine may therefore read
// it, but Cluster is not safe for concurrent use.
type Compiled struct {
	service *model.Service
	// frontends, allPorts and wide are the claimed frontends. rejected contains the problems of the parts that cannot
	// be served.
	frontends, allPorts, wide []frontend
	rejected                  []model.Problem
	// unlisted counts the further problems like those in rejected.
	unlisted int
	// atNodes contains the keys of external IPs at addresses of nodes and pods, and in the node's networks, whether or
	// not they are admitted.
	atNodes []kernel.ServerKey
	// overShare is true if some frontends are rejected because a set is nearly full. In that case, sizes contains the
	// number of entries in each set.
	overShare bool
	sizes     map[string]int

	// The following fields depend on which claims the Service wins.

	// decisions contains one entry per frontend, in the order of groupByPort.
	decisions []decision
	// chosenScheduler is the scheduler before weights are considered. nodeScheduler is the node's configured scheduler.
	chosenScheduler, nodeScheduler string
	mode                           kernel.Mode
	node                           string
	refusedEndpoints               refusals
	// lists is nil if the Service has only one EndpointSlice.
	lists *endpointLists

	fragment want.Fragment
	// size measures how much work it takes to compile the Service.
	size     int
	problems []model.Problem
	health   HealthPort
	noLocal  []NoLocal
}

// claimsOf lists a Service's claims before the winners are known.
func claimsOf(svc *model.Service, n *nodeContext) *Compiled {
	c := frontendsOf(svc, n)
	wide, problems := n.nodeWideClaims(svc)
	c.service, c.allPorts = svc, allPortsFrontends(svc, c.frontends, n)
	c.rejected, c.unlisted = firstOf(slices.Concat(c.rejected, problems))
	c.frontends = slices.Concat(groupByPort(c.frontends)...)
	c.wide = append(wide, n.widerClaims(c.frontends)...)
	return &c
}

// compileService compiles one Service. It omits each frontend to which another Service has a better claim, and adds a Problem for it.
func compileService(claims *Compiled, n *nodeContext, winner func(kernel.ServerKey) model.ServiceID) *Compiled {
	svc := claims.service
	lists := newEndpointLists(svc, claims.lists, n)
	refused := refusedEndpoints(lists.unchecked(claims.lists), n)
	c := &Compiled{
		service: svc, frontends: claims.frontends, allPorts: claims.allPorts, wide: claims.wide,
		rejected: claims.rejected, unlisted: claims.unlisted, atNodes: claims.atNodes, overShare: claims.overShare,
	}
	c.chosenScheduler, c.nodeScheduler = chosenScheduler(svc, n), n.Scheduler
	c.mode, c.node, c.refusedEndpoints = n.Mode, n.NodeName, refused
	health, problems := wonHealthPort(svc, c.wide, n, refused)
	c.health, c.problems = health, slices.Concat(c.rejected, endpointProblems(svc, refused), problems)
	to, ready := slicePortsOf(svc), readinesses(nil)
	for _, group := range groupByPort(c.frontends) {
		port := svc.Ports[group[0].port]
		eps := endpointsOf(svc, lists.of(to.of(port, group[0].key.Family()), n.NodeName, refused), n)
		c.problems = append(c.problems, balancingProblems(svc, port, eps, n)...)
		c.problems = append(c.problems, unservedProblems(svc, group[0].port, group[0].key.Family(), eps, &ready)...)
		c.noLocal = append(c.noLocal, policiesWithoutLocal(svc, group, eps)...)
		for _, f := range group {
			owner := winner(f.key)
			s, guard := virtualServer(svc, f, eps, n)
			c.decisions = append(c.decisions, decision{owner, guard, s.Scheduler, s.Flags})
			if owner != svc.ID {
				c.problems = append(c.problems, n.claimProblem(svc, f, owner))
				continue
			}
			c.fragment = append(c.fragment, s)
		}
	}
	c.fragment, problems = mergePorts(svc, c.allPorts, c.fragment, n, winner)
	c.problems = slices.Concat(c.problems, problems, n.withoutAffinity(svc, c.fragment))
	slices.SortFunc(c.fragment, func(a, b want.Server) int { return a.Key.Compare(b.Key) })
	c.fragment = withHealthPort(c.fragment, c.health, n)
	if c.overShare {
		c.sizes = c.entries()
	}
	c.size = len(c.frontends)
	for i := range c.fragment {
		c.size += len(c.fragment[i].Destinations) + len(c.fragment[i].Members)
	}
	c.problems = listed(svc, c.problems, c.unlisted)
	slices.SortFunc(c.noLocal, NoLocal.compare)
	c.noLocal = slices.Compact(c.noLocal)
	if len(lists.sorted) > 0 {
		lists.forget()
		c.lists = lists
	}
	return c
}

func (n *nodeContext) claimProblem(svc *model.Service, f frontend, owner model.ServiceID) model.Problem {
	what := "the same address, port and protocol"
	if n.isFTP(f.key) {
		what = "port 21 or to all ports of the same address, which only one Service can have with IPVS"
	}
	return problem(svc, f.field, f.value,
		"not served: Service "+owner.String()+" has the better claim to "+what+" (ClusterIPs come first, then node ports, health check ports, "+
			"load balancer addresses and external IPs; between two claims of the same kind, the older Service wins, or the first by name)",
		"use a different address or port")
}

// entries counts the Service's entries in each set. The ledger has one entry for each virtual server.
func (s *Compiled) entries() map[string]int {
	entries := map[string]int{}
	for i := range s.fragment {
		entries[ledger.in(s.fragment[i].Key.Family())]++
		for _, m := range s.fragment[i].Members {
			entries[m.Set]++
		}
	}
	return entries
}
