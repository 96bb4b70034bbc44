package agent

import (
	"github.com/kube-ipvs/kube-ipvs/internal/agent/flows"
	"github.com/kube-ipvs/kube-ipvs/internal/agent/known"
	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Move is another data plane for the node of a running agent. Its sets and rules are in the same place as before.
type Move struct {
	Kernel Kernel
	Mode   kernel.Mode
	// Done is called once the rules of the new data plane are in the kernel. The agent no longer uses the old Kernel.
	Done func()
}

// moves returns no channel while work outside the loop uses the old kernel, or while the kernel's state is unknown. The end of such work wakes
// the loop.
func (a *Agent) moves() <-chan Move {
	busy := a.audits.running() || a.audits.ended != nil || a.checks.running() || a.walks.running() || a.oldRules.running()
	for _, writing := range a.writer.writingRules {
		busy = busy || writing
	}
	if busy || a.planner.known.State() == nil {
		return nil
	}
	return a.cfg.Move
}

// move continues with the new data plane as an agent does that has just been started there: the next sync reads everything from the kernel. Only
// what the source and the node have told stays.
func (a *Agent) move(m Move) {
	a.reader.kernel, a.writer.kernel, a.moved = m.Kernel, m.Kernel, m.Done
	a.cfg.Compile.Mode = m.Mode
	a.planner.cluster.Learn(compile.Facts{Mode: &m.Mode})
	a.planner.known = known.New(m.Mode)
	a.checks, a.walks.flows = &checks{cfg: a.cfg, again: true}, flows.New(m.Mode.NFTablesBalances())
	a.schedule.Request()
}

func (a *Agent) endMove(r *Report) {
	if a.moved != nil && r.rulesComplete() {
		a.moved()
		a.moved = nil
	}
}
