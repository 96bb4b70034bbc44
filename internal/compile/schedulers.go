package compile

import (
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// inProcess is how the agent's process balances in user space: by weighted round robin.
const inProcess = "wrr"

// chosenScheduler returns the scheduler that the Service names. It returns the node's scheduler if the Service names none, if the kernel lacks that
// scheduler, or if its tables would be too large. In user space, there is only one.
func chosenScheduler(svc *model.Service, n *nodeContext) string {
	if n.Mode == kernel.Userspace {
		return inProcess
	}
	for _, name := range []string{svc.Balancing.Scheduler, n.Scheduler} {
		if name != "" && n.hasScheduler(name) && !tablesTooLarge(svc, name) {
			return name
		}
	}
	return model.LastResort
}

func schedulerFlags(svc *model.Service, n *nodeContext) model.SchedulerFlags {
	chosen := chosenScheduler(svc, n)
	if svc.Balancing.FlagsSet && chosen == svc.Balancing.Scheduler {
		return svc.Balancing.Flags
	}
	return model.SchedulerNamed(chosen).DefaultFlags
}

// hasScheduler reports whether this node's kernel may have a scheduler.
func (n *nodeContext) hasScheduler(name string) bool {
	_, missing := n.missing[name]
	return !missing
}

// hasWeighted reports whether a scheduler has a weighted counterpart on this node.
func (n *nodeContext) hasWeighted(s model.Scheduler) bool {
	return s.Weighted != "" && n.hasScheduler(s.Weighted)
}

func untilLoaded(scheduler string) string {
	return "until it has the module ip_vs_" + scheduler + "; kube-ipvs checks again every sync period"
}

// maxTableKiB limits the size of the scheduler tables of one Service.
const maxTableKiB = 32 << 10

// tablesTooLarge reports whether the Service's scheduler tables would be too large. Every virtual server has its own
// table.
func tablesTooLarge(svc *model.Service, scheduler string) bool {
	return frontendsEverywhere(svc)*model.SchedulerNamed(scheduler).TableKiB > maxTableKiB
}

// frontendsEverywhere counts the virtual servers that a Service asks for. A node port counts as one in each family, so that all nodes make the same
// decision, regardless of how many addresses they have.
func frontendsEverywhere(svc *model.Service) int {
	servers := len(svc.Ports) * (len(svc.ClusterIPs) + len(svc.LoadBalancerIPs) + len(svc.ExternalIPs))
	for _, p := range svc.Ports {
		if p.NodePort != 0 {
			servers += len(svc.ClusterIPs)
		}
	}
	return servers
}

// SlowStartSteps is the number of steps in which the weight of a new endpoint rises. All weights of a Service with slow start are multiplied by it,
// so that even a weight of 1 can rise step by step. They are not multiplied if the scheduler interprets a weight as a number of connections.
const SlowStartSteps = 10

// weight multiplies the endpoint's own weight by the weight of its node.
func (n *nodeContext) weight(svc *model.Service, e *model.Endpoint) uint32 {
	w := uint64(svc.Balancing.Weights.Of(e))
	if svc.Balancing.SlowStart > 0 && !model.SchedulerNamed(chosenScheduler(svc, n)).CountsWeights {
		w = min(w*SlowStartSteps, model.MaxWeight)
	}
	if n.weighted+n.stopped > 0 {
		w *= uint64(weightOf(n.nodes[e.Node]))
	}
	return uint32(min(w, model.MaxWeight))
}
