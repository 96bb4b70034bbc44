package agent

import (
	"context"
	"slices"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// bootstrap serves the Services that a new node needs first, before the others are even compiled: until then its pods reach neither
// the API server nor the cluster's DNS.
//
// Compared with so few Services, everything that an earlier agent left would look superfluous. So this is only for nodes that have
// nothing, and a plan that deletes anything is not applied.
func (s *syncRun) bootstrap(ctx context.Context, services map[model.ServiceID]*model.Service) {
	if s.known.State() != nil || s.schedule.Started() {
		return // after a first sync that failed, all are compiled already, and this sync might compare only what changed
	}
	first := bootstrapServices(services)
	if len(first) == 0 || len(first) == len(services) {
		return
	}
	if has, err := s.kernel.HasDevice(ctx); err != nil || has {
		return
	}
	begin := time.Now()
	defer func() { s.report.Stages.Bootstrap = time.Since(begin) }()
	s.compile(first)
	plan, err := s.planFull(ctx)
	if err != nil || len(s.known.State().Servers) > 0 || deletes(plan) {
		return // after the ledger is sealed, virtual servers that the agent should adopt would count as foreign
	}
	s.apply(ctx, plan)
}

// bootstrapServices are the Services that a node needs to become useful. Of these it takes only what no other Service can have a
// better claim to: their ClusterIPs.
func bootstrapServices(services map[model.ServiceID]*model.Service) map[model.ServiceID]*model.Service {
	first := map[model.ServiceID]*model.Service{}
	for id, svc := range services {
		if svc != nil && isBootstrap(id) {
			first[id] = svc.Internal()
		}
	}
	return first
}

// isBootstrap reports whether a Service is the API server's or one of the cluster's own, of which DNS is one.
func isBootstrap(id model.ServiceID) bool {
	return id.Namespace == "kube-system" || id == model.ServiceID{Namespace: "default", Name: "kubernetes"}
}

func deletes(plan diff.Plan) bool {
	return slices.ContainsFunc(plan.Ops(), func(op kernel.Op) bool { return op.Verb == kernel.Delete })
}
