package compile

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// HealthPort tells load balancers whether to send a Service's clients to this node.
type HealthPort struct {
	Port uint16
	// Local counts the ready endpoints on this node.
	Local int
}

// NoLocal is a traffic policy Local of a Service that has ready endpoints in a family, but none on this node.
type NoLocal struct {
	Family   inet.Family
	External bool
}

func (n NoLocal) compare(o NoLocal) int {
	external := func(n NoLocal) int {
		if n.External {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(n.Family, o.Family), cmp.Compare(external(n), external(o)))
}

// compiled is the result of compiling one Service.
type compiled struct {
	service *model.Service
	// frontends, allPorts and wide are claimed; rejected are the problems of what cannot be served.
	frontends, allPorts, wide []frontend
	rejected                  []model.Problem
	// overShare is true if some are rejected because a set is nearly full. The entries in each set are then in sizes.
	overShare bool
	sizes     map[string]int

	// The following fields depend on which claims the Service wins.

	// decisions about the frontends, in the order of groupByPort.
	decisions []decision
	// chosenScheduler is the scheduler before weights are considered, nodeScheduler the configured one.
	chosenScheduler, nodeScheduler string
	// node is the name of this node.
	node string
	// refusedEndpoints says why endpoints get no traffic, by address.
	refusedEndpoints refusals

	fragment want.Fragment
	// size says how much work it was.
	size     int
	problems []model.Problem
	health   HealthPort
	noLocal  []NoLocal
}

// claimsOf lists a Service's claims before the winners are known.
func claimsOf(svc *model.Service, n *nodeContext) *compiled {
	list, rejected, overShare := frontendsOf(svc, n)
	grouped := slices.Concat(groupByPort(list)...)
	wide, problems := n.nodeWideClaims(svc)
	return &compiled{
		service: svc, frontends: grouped, allPorts: allPortsFrontends(svc, list), wide: append(wide, n.widerClaims(grouped)...),
		rejected: slices.Concat(rejected, problems), overShare: overShare,
	}
}

// compileService compiles one Service. It omits frontends to which another Service has the better claim, with a Problem.
func compileService(claims *compiled, n *nodeContext, winner func(kernel.ServerKey) model.ServiceID) *compiled {
	svc := claims.service
	refused := refusedEndpoints(svc, n)
	c := &compiled{
		service: svc, frontends: claims.frontends, allPorts: claims.allPorts, wide: claims.wide,
		rejected: claims.rejected, overShare: claims.overShare,
	}
	c.chosenScheduler, c.nodeScheduler = chosenScheduler(svc, n), n.Scheduler
	c.node, c.refusedEndpoints = n.NodeName, refused
	c.problems = slices.Concat(c.rejected, endpointProblems(svc, refused))
	c.setHealthPort(n)
	to, ready := slicePortsOf(svc), readinesses(nil)
	for _, group := range groupByPort(c.frontends) {
		port := svc.Ports[group[0].port]
		eps := endpointsOf(svc, to.of(port, group[0].key.Family()), refused, n)
		c.problems = append(c.problems, balancingProblems(svc, port, eps, n)...)
		c.problems = append(c.problems, unservedProblems(svc, group[0].port, group[0].key.Family(), eps, &ready)...)
		c.noLocal = append(c.noLocal, policiesWithoutLocal(svc, group, eps)...)
		for _, f := range group {
			owner, s := winner(f.key), virtualServer(svc, f, eps, n)
			c.decisions = append(c.decisions, decisionOf(svc, f, eps, owner, s.Server))
			if owner != svc.ID {
				c.problems = append(c.problems, n.claimProblem(svc, f, owner))
				continue
			}
			c.fragment = append(c.fragment, s)
		}
	}
	c.mergePorts(n, winner)
	c.problems = append(c.problems, n.withoutAffinity(svc, c.fragment)...)
	slices.SortFunc(c.fragment, func(a, b want.Server) int { return a.Key.Compare(b.Key) })
	c.fragment = withHealthPort(c.fragment, c.health, n)
	if c.overShare {
		c.sizes = c.entries()
	}
	c.size = len(c.frontends)
	for i := range c.fragment {
		c.size += len(c.fragment[i].Destinations) + len(c.fragment[i].Members)
	}
	slices.SortFunc(c.problems, model.Problem.Compare)
	c.problems = clip(svc, slices.Compact(c.problems))
	slices.SortFunc(c.noLocal, NoLocal.compare)
	c.noLocal = slices.Compact(c.noLocal)
	return c
}

// groupByPort groups frontends by port and family. A group's frontends share their endpoints.
func groupByPort(list []frontend) [][]frontend {
	type portAndFamily struct {
		port   int
		family inet.Family
	}
	var groups [][]frontend
	at := map[portAndFamily]int{}
	for _, f := range list {
		key := portAndFamily{f.port, f.key.Family()}
		i, known := at[key]
		if !known {
			i = len(groups)
			at[key] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], f)
	}
	return groups
}

// withHealthPort adds the set entries of the health check port to the Service's first virtual server, one for every address at which node
// ports are served.
func withHealthPort(fragment want.Fragment, health HealthPort, n *nodeContext) want.Fragment {
	if health.Port == 0 || len(fragment) == 0 {
		return fragment
	}
	for _, f := range n.Families {
		for _, addr := range n.nodePortAddresses(f) {
			key := kernel.ServerKey{Addr: netip.AddrPortFrom(addr, health.Port), Protocol: inet.TCP}
			fragment[0].Members = append(fragment[0].Members, healthPorts.port(key))
		}
	}
	return fragment
}

// policiesWithoutLocal lists the traffic policies Local for which all endpoints of one port and family are on other nodes.
func policiesWithoutLocal(svc *model.Service, group []frontend, eps endpoints) []NoLocal {
	if len(eps.local) > 0 || len(eps.cluster) == 0 {
		return nil
	}
	var without []NoLocal
	for _, f := range group {
		if isLocal(svc, f.kind) {
			without = append(without, NoLocal{Family: f.key.Family(), External: f.kind != clusterIP})
		}
	}
	return without
}

// isLocal reports whether the traffic policy of a kind of frontend is Local.
func isLocal(svc *model.Service, kind frontendKind) bool {
	if kind == clusterIP {
		return svc.InternalLocal
	}
	return svc.ExternalLocal
}

// virtualServer compiles a virtual server with its destinations and set entries.
func virtualServer(svc *model.Service, f frontend, eps endpoints, n *nodeContext) want.Server {
	chosen, guard := choose(svc, f.kind, eps)
	ds := destinations(svc, chosen, n)
	scheduler, alike := schedulers(svc, ds, n)
	divideWeights(ds, n.weightShift(svc, eps.all))
	s := want.Server{
		Server:       serverConfig(svc, f.key, scheduler, n),
		Alike:        alike,
		Unbound:      f.ownAddress,
		Destinations: ds,
		SlowStart:    svc.Balancing.SlowStart,
		Owner:        model.ServicePortRef{Service: svc.ID, Port: svc.Ports[f.port].Name},
	}
	if !f.ownAddress {
		s.Members = append(s.Members, vips.address(f.key.Addr.Addr()))
	}
	if guard == nil && f.ownAddress && !takesConnections(ds) {
		guard = &refused
	}
	if guard != nil {
		s.Members = append(s.Members, guard.port(f.key), guarded.port(f.key))
	}
	if f.kind != clusterIP && !svc.ExternalLocal {
		s.Members = append(s.Members, masqueraded.port(f.key))
	}
	// A port without endpoints is not in the set, so that the filter table rejects new connections immediately. IPVS would also reject them,
	// but log every packet.
	if takesConnections(ds) {
		s.Members = append(s.Members, servedSet(f.kind).port(f.key))
	}
	if svc.Balancing.MaxConnections > 0 {
		s.Members = append(s.Members, limited.port(f.key))
	}
	if f.kind == loadBalancerIP {
		s.Members = append(s.Members, sourceRangeEntries(svc, f.key, n)...)
	}
	return withHairpin(s, eps.all, n)
}

// withHairpin adds the endpoints that may connect to themselves: pods on this node, because their packets pass this node's IPVS. It also
// adds endpoints that are not chosen, because they may still have open connections.
func withHairpin(s want.Server, all []endpoint, n *nodeContext) want.Server {
	for _, e := range all {
		if n.mayUseItself(e.Endpoint) {
			s.Members = append(s.Members, hairpin.self(e.addr, s.Key.Protocol))
		}
	}
	return s
}

// choose picks the endpoints of a frontend by the Service's traffic policies, and its guard, if any.
func choose(svc *model.Service, kind frontendKind, eps endpoints) ([]endpoint, *setRef) {
	switch {
	case !isLocal(svc, kind):
		return eps.cluster, nil
	case len(eps.local) > 0:
		return eps.local, nil
	case len(eps.cluster) == 0:
		return nil, nil
	case kind == clusterIP:
		return nil, &noLocal
	}
	// Clients outside the cluster must not use this node, because replies of an endpoint on another node would bypass it. Pods and the node
	// itself may, because they do not know where the endpoints are.
	return eps.cluster, &insideOnly
}

// servedSet is the set of served ports for a kind of frontend.
func servedSet(kind frontendKind) setRef {
	if kind == clusterIP {
		return clusterIPs
	}
	return external
}

// sourceRangeEntries restrict a load balancer's address to the clients in the Service's source ranges. They omit a range inside another: it
// admits no other clients, and some set types cannot store it.
func sourceRangeEntries(svc *model.Service, key kernel.ServerKey, n *nodeContext) []kernel.Member {
	members := []kernel.Member{firewalled.port(key), guardedIPs.address(key.Addr.Addr())}
	unrestricted := len(members)
	node, self := false, single(key.Addr.Addr())
	var last netip.Prefix
	for _, r := range svc.SourceRanges { // a range comes before the ranges inside it
		if inet.FamilyOf(r.Addr()) != key.Family() || last.Overlaps(r) {
			continue
		}
		if r.Bits() == 0 {
			return nil // every client
		}
		members, last = append(members, allowed.client(key, r)), r
		node = node || slices.ContainsFunc(n.addresses, r.Contains)
	}
	if len(members) == unrestricted {
		return nil // a family without a range is open
	}
	if node && !slices.ContainsFunc(svc.SourceRanges, self.Overlaps) {
		// For the node's own connections to the virtual address, the kernel uses that address as the source.
		members = append(members, allowed.client(key, self))
	}
	return members
}

func (n *nodeContext) claimProblem(svc *model.Service, f frontend, owner model.ServiceID) model.Problem {
	what := "the same address, port and protocol"
	if n.isFTP(f.key) {
		what = "port 21 or to all ports of the same address, which only one Service can have with IPVS"
	}
	return problem(svc, f.field, f.value,
		"not served: Service "+owner.String()+" has the better claim to "+what+" (a ClusterIP before a node port, then a health check port, "+
			"then a load balancer's address, then an external IP; between two of a kind the older Service, or the first by name)",
		"use a different address or port")
}

// maxProblems bounds the Problems of one Service: each is a line in the log and may become an Event.
const maxProblems = 16

func clip(svc *model.Service, problems []model.Problem) []model.Problem {
	if len(problems) <= maxProblems {
		return problems
	}
	more := problem(svc, "", "", fmt.Sprintf("%d more problems like these", len(problems)-maxProblems), "")
	return append(slices.Clone(problems[:maxProblems]), more)
}

func problem(svc *model.Service, field, value, reason, remedy string) model.Problem {
	return model.Problem{Object: svc.ID.Ref(), Service: svc.ID, Field: field, Value: value, Reason: reason, Remedy: remedy}
}

// refusal is the reason why something in a Service cannot be served, and the remedy.
type refusal struct{ reason, remedy string }
