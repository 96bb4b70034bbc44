package agent

import (
	"fmt"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/agent/drain"
	"github.com/kube-ipvs/kube-ipvs/internal/agent/schedule"
	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

func (p *planner) postpone(s *syncRun) {
	p.known.Postpone(s.touched)
	p.ramps.Retry(s.now, schedule.RetryStep(s.now))
}

func (p *planner) finish(s *syncRun, plan diff.Plan) {
	r := s.report
	p.known.Refusals.Postpone(s.now)
	if p.suspects != nil && !s.comparedAll {
		p.suspects.Add(s.touched)
	}
	p.draining.Update(s.now, p.cfg.DrainInterval, drain.Pass{Target: p.target, Have: p.known.State(), Plan: plan, Full: s.comparedAll})
	r.Draining = p.draining.Count()
	if r.Full && r.Err == nil {
		p.noteDrained(s)
	}
	r.Stopped, r.Drained = p.stopped.Count(), p.stopped.Drained()
	r.describe(p.cluster, p.target)
	if !s.reads {
		r.Written = writtenOf(r.Results, p.target)
	}
}

// If at most fewRefusals Services have refused objects, the node is not at fault.
const fewRefusals = 2

// prevailingRefusal returns an error if the kernel refuses objects of most Services, in most namespaces, for the same
// reason. In that case the node is at fault, not the Services. The users of a single namespace cannot cause this
// error.
func (p *planner) prevailingRefusal() error {
	most := p.known.Refusals.Prevailing()
	if most.Services <= fewRefusals || 2*most.Services <= p.cluster.Services() || 2*most.Namespaces <= p.cluster.Namespaces() {
		return nil
	}
	return fmt.Errorf("the kernel refuses objects of %d of %d Services, for example: %w", most.Services, p.cluster.Services(), most.Err)
}

func (p *planner) noteDrained(s *syncRun) {
	for _, entry := range p.stopped.Update(p.target, p.known.State()) {
		s.report.NewlyDrained = append(s.report.NewlyDrained, DrainedEndpoint{
			Service: p.target.Server(entry.Server).Owner, Server: entry.Server, Endpoint: entry.Addr,
		})
	}
}

func writtenOf(results []Result, w *diff.Target) []model.ServiceID {
	var owners []model.ServiceID
	add := func(key kernel.ServerKey) {
		server := w.Server(key)
		if server != nil && (len(owners) == 0 || owners[len(owners)-1] != server.Owner.Service) {
			owners = append(owners, server.Owner.Service)
		}
	}
	for _, r := range results {
		switch o := r.Op.Object.(type) {
		case kernel.Server:
			add(o.Key)
		case kernel.ServerDestination:
			add(o.Server)
		case kernel.BoundAddress:
			for _, key := range w.ServersAt(o.Addr) {
				add(key)
			}
		}
	}
	slices.SortFunc(owners, model.ServiceID.Compare)
	return slices.Compact(owners)
}
