package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

const (
	endpointReady, endpointServing    = "ready", "serving"
	endpointUnready, endpointDraining = "unready", "draining"
)

type endpoints struct {
	count *prometheus.GaugeVec
	// Only the loop uses perService.
	perService map[model.ServiceID]endpointCounts
}

type endpointCounts struct{ ready, serving, unready int }

func newEndpoints() *endpoints {
	e := &endpoints{
		count: gauges("kube_ipvs_endpoints", "Endpoints of the Services that this node serves, on any node: ready, serving (terminating, still "+
			"serving) or unready; and draining: removed endpoints that still have connections through this node.", "state"),
		perService: map[model.ServiceID]endpointCounts{},
	}
	for _, state := range []string{endpointReady, endpointServing, endpointUnready, endpointDraining} {
		e.count.WithLabelValues(state)
	}
	return e
}

// observe adjusts the counts incrementally: a Report contains only the compiled Services.
func (e *endpoints) observe(r *agent.Report) {
	for id, served := range r.Served {
		now := countEndpoints(served.Service)
		e.change(endpointReady, now.ready-e.perService[id].ready)
		e.change(endpointServing, now.serving-e.perService[id].serving)
		e.change(endpointUnready, now.unready-e.perService[id].unready)
		if e.perService[id] = now; now == (endpointCounts{}) {
			delete(e.perService, id)
		}
	}
	e.count.WithLabelValues(endpointDraining).Set(float64(r.Draining))
}

func (e *endpoints) change(state string, by int) { e.count.WithLabelValues(state).Add(float64(by)) }

func countEndpoints(s *model.Service) endpointCounts {
	var c endpointCounts
	if s == nil {
		return c
	}
	for _, slice := range s.Slices {
		for _, e := range slice.Endpoints {
			switch {
			case e.Ready:
				c.ready++
			case e.Serving:
				c.serving++
			default:
				c.unready++
			}
		}
	}
	return c
}
