package agent

import (
	"context"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// bootstrap first serves the Services that a new node needs most: without them, its pods reach neither the API server
// nor the cluster's DNS. It runs only on nodes without kernel state. Otherwise most objects of an earlier agent would
// look unwanted.
func (a *Agent) bootstrap(ctx context.Context, s *syncRun) {
	p := a.planner
	if p.known.State() != nil || a.schedule.Started() {
		return // an earlier sync has compiled all Services, and this sync may be incremental
	}
	services := p.cluster.Waiting()
	first := bootstrapServices(services)
	if len(first) == 0 || len(first) == len(services) {
		return
	}
	if has, err := a.reader.kernel.HasDevice(ctx); err != nil || has {
		return
	}
	begin := time.Now()
	defer func() { s.report.Stages.Bootstrap = time.Since(begin) }()
	p.compileFirst(s, first)
	plan, err := p.planFull(ctx, a.reader.kernel, s)
	if err != nil {
		return
	}
	if len(p.known.State().Servers) > 0 || hasDeletion(plan) {
		// Sealing the ledger would turn virtual servers that the agent should adopt into foreign ones. If the next read fails, the sync after it is
		// still the first one (checkInherited).
		p.known.Forget()
		return
	}
	a.writer.apply(ctx, s, p, plan)
}

// bootstrapServices returns the bootstrap Services with only their ClusterIPs, because no other Service can have a
// better claim to a ClusterIP.
func bootstrapServices(services map[model.ServiceID]*model.Service) map[model.ServiceID]*model.Service {
	first := map[model.ServiceID]*model.Service{}
	for id, svc := range services {
		if svc != nil && isBootstrap(id) {
			first[id] = svc.Internal()
		}
	}
	return first
}

func isBootstrap(id model.ServiceID) bool {
	return id.Namespace == "kube-system" || id == model.ServiceID{Namespace: "default", Name: "kubernetes"}
}

func hasDeletion(plan diff.Plan) bool {
	return plan.Has(func(op kernel.Op) bool { return op.Verb == kernel.Delete })
}
