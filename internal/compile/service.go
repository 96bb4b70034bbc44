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

// NoLocal is a policy "Local" of a Service that has ready endpoints in a family, but none on this node.
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

// compiled is what one Service asks of this node.
type compiled struct {
	service *model.Service
	// fronts and wide are claimed; misfits say what the Service asks for that cannot be.
	fronts, wide []front
	misfits      []model.Problem

	// decisions about the fronts, in the order of groupByPort.
	decisions []decision
	// chosenScheduler is the scheduler before weights are considered, nodeScheduler the configured one.
	chosenScheduler, nodeScheduler string
	// virtualEndpoints are the endpoints' addresses that are bound on this node.
	virtualEndpoints map[netip.Addr]struct{}

	fragment want.Fragment
	problems []model.Problem
	health   HealthPort
	noLocal  []NoLocal
}

// claiming is a Service before it is known which of its claims it gets.
func claiming(svc *model.Service, n *nodeContext) *compiled {
	list, misfits := fronts(svc, n)
	grouped := slices.Concat(groupByPort(list)...)
	return &compiled{service: svc, fronts: grouped, wide: wideFronts(svc, list), misfits: misfits}
}

// compileService compiles one Service. Fronts that another Service has the better claim to are left out, with a Problem.
func compileService(claims *compiled, n *nodeContext, winner func(kernel.ServerKey) model.ServiceID) *compiled {
	svc := claims.service
	c := &compiled{service: svc, fronts: claims.fronts, wide: claims.wide, misfits: claims.misfits, health: healthPort(svc, n)}
	c.chosenScheduler, c.nodeScheduler = chosenScheduler(svc, n), n.Scheduler
	c.virtualEndpoints = virtualEndpoints(svc, n)
	c.problems = slices.Concat(c.misfits, portProblems(svc), endpointProblems(svc, n))
	for _, group := range groupByPort(c.fronts) {
		port := svc.Ports[group[0].port]
		b := backendsOf(svc, port, group[0].key.Family(), n)
		c.problems = append(c.problems, balancingProblems(svc, port, destinations(svc, b.cluster, n), n)...)
		c.noLocal = append(c.noLocal, lackLocal(svc, group, b)...)
		for _, f := range group {
			owner, s := winner(f.key), server(svc, f, b, n)
			c.decisions = append(c.decisions, decisionOf(svc, f, b, owner, s.Server))
			if owner != svc.ID {
				c.problems = append(c.problems, claimProblem(svc, f, owner))
				continue
			}
			c.fragment = append(c.fragment, s)
		}
	}
	c.widen(winner)
	c.fragment = withHealthPort(c.fragment, c.health, n)
	slices.SortFunc(c.fragment, func(a, b want.Server) int { return a.Key.Compare(b.Key) })
	slices.SortFunc(c.problems, model.Problem.Compare)
	c.problems = clip(svc, slices.Compact(c.problems))
	slices.SortFunc(c.noLocal, NoLocal.compare)
	c.noLocal = slices.Compact(c.noLocal)
	return c
}

// groupByPort puts fronts of one port and family together: they share their endpoints.
func groupByPort(list []front) [][]front {
	type portOf struct {
		port   int
		family inet.Family
	}
	var groups [][]front
	at := map[portOf]int{}
	for _, f := range list {
		key := portOf{f.port, f.key.Family()}
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

// withHealthPort hangs the health check port, at every address where node ports are served, on the Service's first server.
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

// lackLocal says for which policies the endpoints of one port and family are all on other nodes.
func lackLocal(svc *model.Service, group []front, b backends) []NoLocal {
	if len(b.local) > 0 || len(b.cluster) == 0 {
		return nil
	}
	var lack []NoLocal
	for _, f := range group {
		if internal := f.kind == clusterIP; internal && svc.InternalLocal || !internal && svc.ExternalLocal {
			lack = append(lack, NoLocal{Family: f.key.Family(), External: !internal})
		}
	}
	return lack
}

// server compiles one virtual server with all that hangs on it.
func server(svc *model.Service, f front, b backends, n *nodeContext) want.Server {
	chosen, guard := choose(svc, f.kind, b)
	ds := destinations(svc, chosen, n)
	s := want.Server{
		Server:       serverConfig(svc, f.key, ds, n),
		Unbound:      f.own,
		Destinations: ds,
		SlowStart:    svc.Balancing.SlowStart,
		Owner:        model.ServicePortRef{Service: svc.ID, Port: svc.Ports[f.port].Name},
	}
	if !f.own {
		s.Members = append(s.Members, vips.address(f.key.Addr.Addr()))
	}
	if guard != nil {
		s.Members = append(s.Members, guard.port(f.key))
	}
	if f.kind != clusterIP && !svc.ExternalLocal {
		s.Members = append(s.Members, masqueraded.port(f.key))
	}
	// Without an endpoint the port is left out of the set, so that the filter refuses new connections at once. (IPVS would
	// refuse them too, with a line in the kernel log for every packet.)
	switch {
	case takesConnections(ds):
		s.Members = append(s.Members, servedBy(f.kind).port(f.key))
	case f.own && guard == nil:
		s.Members = append(s.Members, refused.port(f.key))
	}
	if svc.Balancing.MaxConnections > 0 {
		s.Members = append(s.Members, limited.port(f.key))
	}
	if f.kind == loadBalancerIP {
		s.Members = append(s.Members, firewall(svc, f.key, n)...)
	}
	return withHairpin(s, b.all, n)
}

// withHairpin lists the endpoints that may meet themselves: only a pod of this node can, through this node's IPVS. One that is
// not chosen may still have open connections.
func withHairpin(s want.Server, all []target, n *nodeContext) want.Server {
	for _, t := range all {
		if t.endpoint.Node == n.NodeName || t.endpoint.Node == "" || n.NodeName == "" {
			s.Members = append(s.Members, hairpin.self(t.addr, s.Key.Protocol))
		}
	}
	return s
}

// choose picks the endpoints for a front, by the Service's traffic policies, and the guard that stands before it, if any.
func choose(svc *model.Service, kind frontKind, b backends) ([]target, *setRef) {
	local := svc.ExternalLocal
	if kind == clusterIP {
		local = svc.InternalLocal
	}
	switch {
	case !local:
		return b.cluster, nil
	case len(b.local) > 0:
		return b.local, nil
	case len(b.cluster) == 0:
		return nil, nil
	case kind == clusterIP:
		return nil, &noLocal
	}
	// Clients outside must not come this way, because answers of an endpoint elsewhere would not find back through this
	// node. For pods and the node itself, which cannot know where the endpoints are, they do.
	return b.cluster, &insideOnly
}

// servedBy is the set of served ports that a front belongs to.
func servedBy(kind frontKind) setRef {
	if kind == clusterIP {
		return clusterIPs
	}
	return external
}

// firewall restricts a load balancer's address to the clients in the Service's source ranges.
func firewall(svc *model.Service, key kernel.ServerKey, n *nodeContext) []kernel.Member {
	members := []kernel.Member{firewalled.port(key)}
	node := false
	for _, r := range svc.SourceRanges {
		if inet.FamilyOf(r.Addr()) != key.Family() {
			continue
		}
		if r.Bits() == 0 {
			return nil // everybody
		}
		members = append(members, allowed.client(key, r))
		node = node || slices.ContainsFunc(n.addresses, r.Contains)
	}
	if len(members) == 1 {
		return nil // a family without a range is open
	}
	if node {
		// The kernel picks the virtual address itself as source for the node's own connections to it.
		members = append(members, allowed.client(key, single(key.Addr.Addr())))
	}
	return members
}

func claimProblem(svc *model.Service, f front, owner model.ServiceID) model.Problem {
	return problem(svc, f.field, f.value,
		"not served: Service "+owner.String()+" has the better claim to the same address, port and protocol (a ClusterIP before a "+
			"node port, then a load balancer's address, then an external IP; of two of a kind the older Service's, or the first by "+
			"name)", "use an address or port of its own")
}

// portProblems names the ports that repeat an earlier one.
func portProblems(svc *model.Service) []model.Problem {
	var problems []model.Problem
	for i, port := range svc.Ports {
		same := func(o model.ServicePort) bool { return o.Port == port.Port && o.Protocol == port.Protocol }
		if first := slices.IndexFunc(svc.Ports, same); first < i {
			problems = append(problems, problem(svc, fmt.Sprintf("spec.ports[%d].port", i), fmt.Sprintf("%d/%s", port.Port, port.Protocol),
				fmt.Sprintf("not served: spec.ports[%d] has the same port and protocol", first), "list each port and protocol once"))
		}
	}
	return problems
}

// maxProblems bounds what one Service can say: each Problem is a line in the log, and may become an Event.
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

// refusal says why something that a Service asks for cannot be done, and what to do instead.
type refusal struct{ reason, remedy string }
