package compile

import (
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// serverConfig says how a virtual server shares out its connections among these endpoints.
func serverConfig(svc *model.Service, key kernel.ServerKey, ds []kernel.Destination, n *nodeContext) kernel.Server {
	s := kernel.Server{Key: key, Scheduler: scheduler(svc, ds, n), MaskBits: uint8(key.Family().Bits())}
	s.Flags = uint32(schedulerFlags(svc, n)) * kernel.FlagSched1
	if svc.AffinityTimeout > 0 {
		s.Flags |= kernel.FlagPersistent
		s.Timeout = uint32(svc.AffinityTimeout.Seconds())
		s.MaskBits = clientBits(svc.Balancing, key.Family())
	}
	if svc.Balancing.OnePacket && key.Protocol == inet.UDP {
		s.Flags |= kernel.FlagOnePacket
	}
	return s
}

// scheduler is the one that the Service asks for, or the node's. One that knows no weights gives way to the one that does the
// same with weights, where these are to have an effect.
func scheduler(svc *model.Service, ds []kernel.Destination, n *nodeContext) string {
	chosen := model.SchedulerNamed(chosenScheduler(svc, n))
	if n.hasWeighted(chosen) && (weightsDiffer(ds) || svc.Balancing.SlowStart > 0) {
		return chosen.Weighted
	}
	return chosen.Name
}

// hasWeighted says whether there is a scheduler that does the same with weights, and this node has it.
func (n *nodeContext) hasWeighted(s model.Scheduler) bool {
	return s.Weighted != "" && n.hasScheduler(s.Weighted)
}

// hasScheduler says whether this node's kernel has a scheduler, as far as is known.
func (n *nodeContext) hasScheduler(name string) bool {
	_, missing := n.missing[name]
	return !missing
}

// usual is the scheduler of Services that do not name one that this node has.
func (n *nodeContext) usual() string {
	if n.hasScheduler(n.Scheduler) {
		return n.Scheduler
	}
	return model.LastResort
}

func chosenScheduler(svc *model.Service, n *nodeContext) string {
	if name := svc.Balancing.Scheduler; name != "" && n.hasScheduler(name) {
		return name
	}
	return n.usual()
}

func schedulerFlags(svc *model.Service, n *nodeContext) model.SchedulerFlags {
	chosen := chosenScheduler(svc, n)
	if svc.Balancing.FlagsSet && chosen == svc.Balancing.Scheduler {
		return svc.Balancing.Flags
	}
	return model.SchedulerNamed(chosen).Usual
}

// weightsDiffer says whether some endpoints shall get more than others. Weight 0, no new connections, works with every scheduler.
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
	bits := b.ClientBits4
	if f == inet.IPv6 {
		bits = b.ClientBits6
	}
	if bits == 0 {
		return uint8(f.Bits())
	}
	return bits
}

// destinations makes the chosen endpoints into what IPVS knows.
func destinations(svc *model.Service, chosen []target, n *nodeContext) []kernel.Destination {
	ds := make([]kernel.Destination, len(chosen))
	for i, t := range chosen {
		ds[i] = kernel.Destination{
			Addr:   t.addr,
			Weight: n.weight(svc, t.endpoint),
			Upper:  svc.Balancing.MaxConnections,
			Lower:  svc.Balancing.ResumeConnections,
		}
	}
	return ds
}

// SlowStartSteps is in how many steps the weight of a new endpoint rises. All weights of a Service with a slow start are that
// many times what they would be, so that a weight of 1 can rise, too; but where they count connections they stay what they are.
const SlowStartSteps = 10

// weight is the endpoint's own times its node's.
func (n *nodeContext) weight(svc *model.Service, e *model.Endpoint) uint32 {
	w := uint64(svc.Balancing.Weights.Of(e))
	if svc.Balancing.SlowStart > 0 && !model.SchedulerNamed(chosenScheduler(svc, n)).CountsWeights {
		w = min(w*SlowStartSteps, model.MaxWeight)
	}
	if node := n.nodes[e.Node]; node != nil && node.WeightSet {
		w *= uint64(node.Weight)
	}
	return uint32(min(w, model.MaxWeight))
}

// takesConnections says whether any destination gets new connections.
func takesConnections(ds []kernel.Destination) bool {
	return slices.ContainsFunc(ds, func(d kernel.Destination) bool { return d.Weight > 0 })
}

func untilLoaded(scheduler string) string {
	return "until it has the module ip_vs_" + scheduler + "; kube-ipvs looks again with every sync period"
}

// balancingProblems says what of the Service's annotations does not work as its owner may think.
func balancingProblems(svc *model.Service, port model.ServicePort, ds []kernel.Destination, n *nodeContext) []model.Problem {
	var problems []model.Problem
	note := func(annotation, value, reason, remedy string) {
		problems = append(problems, problem(svc, "metadata.annotations[kube-ipvs.io/"+annotation+"]", value, reason, remedy))
	}
	b := svc.Balancing
	if !n.hasScheduler(b.Scheduler) {
		note("scheduler", b.Scheduler, "this node's kernel has no such scheduler: "+n.usual()+" is used "+untilLoaded(b.Scheduler), "")
	}
	chosen := model.SchedulerNamed(chosenScheduler(svc, n))
	if b.Scheduler == chosen.Name && chosen.Advice != "" {
		note("scheduler", b.Scheduler, "works, but "+chosen.Advice, "")
	}
	if chosen.IgnoresWeights && !n.hasWeighted(chosen) && (weightsDiffer(ds) || b.SlowStart > 0) {
		note("scheduler", chosen.Name, "weights (of this Service or of Nodes) and slow-start have no effect, except weight 0: the scheduler "+
			chosen.Name+" treats all endpoints alike", "use another, such as wrr, wlc or mh")
	}
	if b.OnePacket && port.Protocol == inet.UDP {
		note("one-packet", "true", "works, but only for clients whose address is kept (pods, or externalTrafficPolicy: Local) "+
			"and that expect no answer: "+
			"answers carry the endpoint's own address, and of masqueraded clients many datagrams are lost", "")
	}
	return problems
}
