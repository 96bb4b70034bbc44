package agent

import (
	"context"
	"fmt"

	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// compile takes the changes of the cluster and of the node's addresses into the wanted state. When it fails the addresses
// are those of before.
func (a *Agent) compile(ctx context.Context, touched *want.Touched, report *Report) error {
	changes := a.source.Take()
	err := a.readAddresses(ctx, touched, report)
	a.takeSettings(touched, report)
	for name := range a.lacking {
		report.compiled(a.cluster.LackScheduler(name, touched))
	}
	clear(a.lacking)
	report.compiled(a.cluster.UpdateNodes(changes.Nodes, touched))
	report.compiled(a.cluster.Update(changes.Services, touched))
	report.Unreadable = changes.Problems
	a.triggers = append(a.triggers, changes.Triggers...)
	a.triggers = a.triggers[max(0, len(a.triggers)-maxTriggers):]
	return err
}

func (a *Agent) takeSettings(touched *want.Touched, report *Report) {
	if a.settings == nil {
		return
	}
	s := a.settings
	a.settings = nil
	a.cfg.Compile, a.cfg.AuditInterval, a.cfg.MinInterval, a.cfg.DrainTimeout = s.Compile, s.AuditInterval, s.MinInterval, s.DrainTimeout
	report.compiled(a.cluster.Reconfigure(a.cfg.Compile, touched))
}

// readAddresses reads the node's addresses when they may have changed, and with every audit.
func (a *Agent) readAddresses(ctx context.Context, touched *want.Touched, report *Report) error {
	if !a.moved && !a.due(report.Started) {
		return nil
	}
	addrs, err := a.kernel.NodeAddresses(ctx)
	if err != nil {
		return fmt.Errorf("read this node's addresses: %w; node ports stay on those known before", err)
	}
	a.moved = false
	report.compiled(a.cluster.SetAddresses(addrs, touched))
	return nil
}
