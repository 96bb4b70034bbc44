package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// learn takes what has changed around the Services into the wanted state: the node's addresses, the settings, what the kernel has, the
// Nodes. When it fails the addresses are those of before.
func (a *Agent) learn(ctx context.Context, changes model.Changes, touched *want.Touched, report *Report) error {
	err := a.readAddresses(ctx, touched, report)
	a.takeSettings(touched, report)
	report.compiled(a.learnSchedulers(ctx, report.Started, changes.Services, touched))
	report.compiled(a.cluster.UpdateNodes(changes.Nodes, touched))
	report.Unreadable = changes.Problems
	a.triggers = append(a.triggers, changes.Triggers...)
	a.triggers = a.triggers[max(0, len(a.triggers)-maxTriggers):]
	return err
}

// learnSchedulers learns which schedulers this kernel lacks: those of which it said so when it was asked for a virtual server; those that a
// Service names for the first time; and, with every audit, the node's own and those that were missing, whose modules may have come since.
func (a *Agent) learnSchedulers(
	ctx context.Context, now time.Time, changed map[model.ServiceID]*model.Service, touched *want.Touched,
) []model.ServiceID {
	has := map[string]bool{}
	for name := range a.lacking {
		has[name] = false
	}
	clear(a.lacking)
	if ask := a.schedulersToAsk(now, changed); len(ask) > 0 {
		maps.Copy(has, a.kernel.Schedulers(ctx, ask))
	}
	for name := range has {
		a.learnt[name] = true
	}
	return a.cluster.SetSchedulers(has, touched)
}

func (a *Agent) schedulersToAsk(now time.Time, changed map[model.ServiceID]*model.Service) []string {
	ask := map[string]struct{}{}
	for _, svc := range changed {
		if svc != nil && svc.Balancing.Scheduler != "" && !a.learnt[svc.Balancing.Scheduler] {
			ask[svc.Balancing.Scheduler] = struct{}{}
		}
	}
	if a.due(now) {
		for _, name := range a.cluster.DoubtfulSchedulers() {
			ask[name] = struct{}{}
		}
	}
	return slices.Sorted(maps.Keys(ask))
}

func (a *Agent) takeSettings(touched *want.Touched, report *Report) {
	if a.settings == nil {
		return
	}
	s := a.settings
	a.settings = nil
	a.cfg.Compile.Settings, a.cfg.AuditInterval, a.cfg.MinInterval, a.cfg.DrainTimeout = s.Compile, s.AuditInterval, s.MinInterval, s.DrainTimeout
	report.compiled(a.cluster.Reconfigure(s.Compile, touched))
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
