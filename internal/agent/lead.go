package agent

import (
	"context"
	"slices"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// lead serves the Services that a new node needs at once before all others are compiled: until then its pods reach neither the API
// server nor the cluster's DNS.
//
// Beside so few Services all that a node has from before would look superfluous. So this is for nodes that have nothing, and nothing
// is done that takes anything away.
func (a *Agent) lead(ctx context.Context, now time.Time, services map[model.ServiceID]*model.Service, touched *want.Touched, report *Report) {
	if a.have != nil || !a.auditAt.IsZero() {
		return // after a first pass that failed all are compiled, and the rest of this one might compare no more than what changed
	}
	first := leading(services)
	if len(first) == 0 || len(first) == len(services) {
		return
	}
	if has, err := a.kernel.HasDevice(ctx); err != nil || has {
		return
	}
	begin := time.Now()
	defer func() { report.Stages.Lead = time.Since(begin) }()
	report.compiled(a.cluster.Update(first, touched))
	plan, err := a.planFull(ctx, now, touched, report)
	if err != nil || len(a.have.Servers) > 0 || removes(plan) {
		return // beside virtual servers that are to be taken over, the seal would say that they are somebody else's
	}
	a.apply(ctx, plan, report)
}

// leading are the Services that a node needs to become one, and of these what nobody else can have a claim to: their ClusterIPs.
func leading(services map[model.ServiceID]*model.Service) map[model.ServiceID]*model.Service {
	first := map[model.ServiceID]*model.Service{}
	for id, svc := range services {
		if svc != nil && isLeading(id) {
			first[id] = svc.Internal()
		}
	}
	return first
}

// isLeading says whether this is the API server's Service or one of the cluster's own, of which DNS is one.
func isLeading(id model.ServiceID) bool {
	return id.Namespace == "kube-system" || id == model.ServiceID{Namespace: "default", Name: "kubernetes"}
}

func removes(plan diff.Plan) bool {
	return slices.ContainsFunc(plan.Ops(), func(op kernel.Op) bool { return op.Verb == kernel.Delete })
}
