package compile

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// serverConfig decides how a virtual server with this scheduler distributes connections.
func serverConfig(svc *model.Service, key kernel.ServerKey, scheduler string, n *nodeContext) kernel.Server {
	s := kernel.Server{Key: key, Scheduler: scheduler, MaskBits: uint8(key.Family().Bits())}
	s.Flags = uint32(schedulerFlags(svc, n)) * kernel.FlagSched1
	if svc.AffinityTimeout > 0 && !n.isFTP(key) {
		s.Flags |= kernel.FlagPersistent
		s.Timeout = uint32(svc.AffinityTimeout.Seconds())
		s.MaskBits = clientBits(svc.Balancing, key.Family())
	}
	if svc.Balancing.OnePacket && key.Protocol == inet.UDP {
		s.Flags |= kernel.FlagOnePacket
	}
	if n.Mode == kernel.Userspace && key.Protocol == inet.TCP {
		s.Flags |= proxyFlags[svc.Balancing.ProxyProtocol]
	}
	return s
}

var proxyFlags = map[uint8]uint32{1: kernel.FlagProxyV1, 2: kernel.FlagProxyV2}

// schedulers returns the scheduler that the Service names, or else the node's default. If weights matter, a scheduler that ignores them is replaced
// with its weighted counterpart (rr with wrr). While all weights are equal, both schedulers have the same effect, and an existing virtual server
// keeps its scheduler, because the kernel refuses new connections during a scheduler change (decision 7). A new virtual server starts with the
// weighted scheduler if weights may differ later.
func schedulers(svc *model.Service, ds []kernel.Destination, n *nodeContext) (begin, alike string) {
	chosen := model.SchedulerNamed(chosenScheduler(svc, n))
	switch {
	case !n.hasWeighted(chosen):
		return chosen.Name, ""
	case weightsDiffer(ds) || svc.Balancing.SlowStart > 0:
		return chosen.Weighted, ""
	case svc.Balancing.Weights.MayDiffer() || n.weighted > 0:
		return chosen.Weighted, chosen.Name
	}
	return chosen.Name, chosen.Weighted
}

// weightsDiffer reports whether some destinations should get more connections than others. Weight 0 does not count: every scheduler honors
// it.
func weightsDiffer(ds []kernel.Destination) bool {
	seen := uint32(0)
	for _, d := range ds {
		if d.Weight > 0 && seen > 0 && d.Weight != seen {
			return true
		}
		seen = max(seen, d.Weight)
	}
	return false
}

func clientBits(b model.Balancing, f inet.Family) uint8 {
	if f == inet.IPv6 {
		return cmp.Or(b.ClientBits6, uint8(f.Bits()))
	}
	return cmp.Or(b.ClientBits4, uint8(f.Bits()))
}

// balance decides on the scheduler and the weights, once for all frontends of the pool. all are all endpoints of the port.
func (p *pool) balance(svc *model.Service, all []Endpoint, n *nodeContext) {
	if p.balanced {
		return
	}
	p.balanced, p.destinations = true, destinationsOf(svc, p.endpoints, n)
	p.scheduler, p.alike = schedulers(svc, p.destinations, n)
	divideWeights(p.destinations, n.weightShift(svc, all))
}

func destinationsOf(svc *model.Service, chosen []Endpoint, n *nodeContext) []kernel.Destination {
	ds := make([]kernel.Destination, len(chosen))
	for i, e := range chosen {
		ds[i] = kernel.Destination{
			Addr:   e.Addr,
			Weight: n.weight(svc, e.Endpoint),
			Upper:  svc.Balancing.MaxConnections,
			Lower:  svc.Balancing.ResumeConnections,
		}
	}
	return ds
}

// weightShift returns the binary logarithm of the number by which a port's weights are divided. The division limits the kernel's search for an
// endpoint: it takes no more steps than the largest Service has endpoints. Other schedulers also need up to that many steps. The result depends on
// all endpoints of the port, ready or not, so that it rarely changes.
func (n *nodeContext) weightShift(svc *model.Service, all []Endpoint) (shift int) {
	most := n.mostSteps(svc, len(all))
	if most == 0 {
		return 0
	}
	largest, divisor := uint32(0), uint32(0)
	for _, e := range all {
		w := n.weight(svc, e.Endpoint)
		largest, divisor = max(largest, w), commonDivisor(divisor, w)
	}
	if svc.Balancing.SlowStart > 0 {
		divisor = 1 // during slow start, the weights may have no common divisor
	}
	tooMany := func(steps uint32) bool { return int64(steps)*int64(len(all)) > int64(most) }
	if largest == 0 || !tooMany(largest/divisor) {
		return 0
	}
	for largest>>shift > 1 && tooMany(largest>>shift) {
		shift++
	}
	return shift
}

// mostSteps returns the maximum sum of a port's weights, or 0 for no limit. nftables needs that many slots in each frontend, and the total of a
// Service's slots must not exceed its maximum number of destinations.
func (n *nodeContext) mostSteps(svc *model.Service, endpoints int) int {
	switch n.Mode {
	case kernel.NFTablesOnly:
		return max(n.bounds.destinations/max(frontendsEverywhere(svc), 1), endpoints)
	case kernel.Userspace:
		return 0
	}
	chosen := model.SchedulerNamed(chosenScheduler(svc, n))
	if n.hasWeighted(chosen) {
		chosen = model.SchedulerNamed(chosen.Weighted)
	}
	if !chosen.CountsDown || svc.Balancing.MaxConnections == 0 {
		return 0
	}
	return n.bounds.endpoints
}

func commonDivisor(a, b uint32) uint32 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// divideWeights divides weights by a power of two. A weight above 0 never becomes 0.
func divideWeights(ds []kernel.Destination, shift int) {
	if shift == 0 {
		return
	}
	for i, d := range ds {
		ds[i].Weight = max(d.Weight>>shift, min(d.Weight, 1))
	}
}

// takesConnections reports whether any destination accepts new connections.
func takesConnections(ds []kernel.Destination) bool {
	return slices.ContainsFunc(ds, func(d kernel.Destination) bool { return d.Weight > 0 })
}

// balancingProblems lists the Service's annotations that may not work as its owner expects.
func balancingProblems(svc *model.Service, port model.ServicePort, eps portEndpoints, n *nodeContext) []model.Problem {
	var problems []model.Problem
	note := func(annotation, value, reason, remedy string) {
		problems = append(problems, problem(svc, "metadata.annotations[kube-ipvs.io/"+annotation+"]", value, reason, remedy))
	}
	b := svc.Balancing
	lackingOf(n.Mode, b, port, note)
	if !n.Mode.IPVSBalances() {
		return problems
	}
	chosen := model.SchedulerNamed(chosenScheduler(svc, n))
	if !n.hasScheduler(b.Scheduler) {
		note("scheduler", b.Scheduler, "this node's kernel has no such scheduler: "+chosen.Name+" is used "+untilLoaded(b.Scheduler), "")
	}
	if asked := cmp.Or(b.Scheduler, n.Scheduler); tablesTooLarge(svc, asked) {
		note("scheduler", asked, fmt.Sprintf("%s is used: with %s, the Service would take more than %d MiB of each node's kernel memory, %d KiB for each virtual server",
			chosen.Name, asked, maxTableKiB>>10, model.SchedulerNamed(asked).TableKiB), "use fewer ports or addresses, or several Services")
	}
	if b.Scheduler == chosen.Name && chosen.Advice != "" {
		note("scheduler", b.Scheduler, "works, but "+chosen.Advice, "")
	}
	if chosen.IgnoresWeights && !n.hasWeighted(chosen) && (b.SlowStart > 0 || weightsDiffer(destinationsOf(svc, eps.cluster.endpoints, n))) {
		note("scheduler", chosen.Name, "the scheduler "+chosen.Name+" treats all endpoints alike: weights (of this Service or of Nodes) other than 0, and "+
			"slow-start, have no effect", "use a scheduler that honors weights, such as wrr, wlc or mh")
	}
	if n.weightShift(svc, eps.all) > 0 {
		note("max-connections", strconv.FormatUint(uint64(b.MaxConnections), 10), "works, but all weights are divided by the same number and rounded: otherwise the "+
			"kernel would search too long for an endpoint while the ones with the largest weights are at their limit",
			"use smaller weights, or another scheduler, such as wlc")
	}
	if b.OnePacket && port.Protocol == inet.UDP {
		note("one-packet", "true", "works only for clients whose address is preserved (pods, or externalTrafficPolicy: Local) "+
			"and that expect no reply: replies carry the endpoint's own address, and many datagrams of masqueraded clients are lost", "")
	}
	return problems
}

func proxyVersion(b model.Balancing) string { return fmt.Sprintf("v%d", b.ProxyProtocol) }
